"""Run a model's layers over labelled tokens, under an attention pattern; read single layers and attention weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from embrew.model.attention import (
    MODES,
    PROBE_WIDTH,
    TWO_CALLS,
    Attention,
    follows_pattern,
    give_same_states,
    key_of,
    library_states,
    with_short_windows,
)
from embrew.model.batching import Cost
from embrew.model.cpu.attention import Packed
from embrew.model.kernels import Bottleneck, two_calls_apply, use_two_calls
from embrew.model.layers import (
    SHARED,
    Wrapper,
    causal_layers,
    check_positions,
    is_bert_type,
    layers_of,
    path_of_layers,
    per_layer_inputs,
    reads_both_ways,
    with_configuration,
    with_layers,
)
from embrew.text.tokens import Segment, Tokens, select_rows, write_masked

FINAL_NORMS = ("norm", "norm_f", "final_layer_norm", "final_layernorm", "ln_f", "final_norm", "embedding_norm")
POST_NORM = ("encoder.layer", "transformer.layer", SHARED)  # every layer ends with its norm; there is no final one

CAUSAL = Attention("causal")
Masks = Literal["usual", "library", "explicit"]
"""What a model is called with: the mask that is fastest; one of two dimensions; one of four dimensions."""


def write_soft(embedded: Tensor, tokens: Tokens) -> Tensor:
    """Write `tokens.soft` into the SOFT positions of `(batch, tokens, hidden)` embeddings."""
    if tokens.soft is None:
        return embedded
    host = tokens.host
    is_soft = host.where(Segment.SOFT)
    soft = select_rows(tokens.soft, host.input_ids[is_soft]) if tokens.soft.ndim == 2 else tokens.soft.flatten(0, 1)
    return write_masked(embedded, is_soft, soft.to(embedded.dtype))


def forward(
    inner: PreTrainedModel,
    embedded: Tensor,
    tokens: Tokens,
    attention: Attention,
    num_layers: int | None = None,
    *,
    layers: Sequence[nn.Module] | None = None,
    packed: Packed | None = None,
) -> Tensor:
    """Run the layers under an attention pattern; the model is not changed, so several threads may run at once.

    Args:
        inner: the model without its head.
        embedded: `(batch, tokens, hidden)` input embeddings.
        tokens: the batch.
        attention: attention pattern.
        num_layers: number of layers to run, from the first; None: all.
        layers: modules to run in place of the layers.
        packed: the same batch as one row, which the layers then read.
    """
    if num_layers is not None and not 1 <= num_layers <= len(layers_of(inner)):
        raise ValueError(f"num_layers={num_layers}; choose from 1 to {len(layers_of(inner))}")
    check_positions(inner, tokens)
    masks = masks_for(inner, attention)
    used = inner if layers is None else with_layers(inner, layers)
    if packed is not None:
        return _run_packed(used, embedded, tokens, packed, num_layers)
    return _run(used, embedded, tokens, attention, num_layers, masks=masks)


def _run(
    inner: Any,
    embedded: Tensor,
    tokens: Tokens,
    attention: Attention,
    num_layers: int | None = None,
    *,
    masks: Masks,
) -> Tensor:
    options: dict[str, Bottleneck | Tensor] = {}
    mask: Tensor | dict[str, Tensor] | None = None
    positions, unmasked = tokens.position_ids, False
    explicit = masks == "explicit" or attention.is_causal is None or positions is not None
    if attention.bottleneck and not attention.hide and two_calls_apply(inner, tokens) and masks != "explicit":
        options, unmasked = {"bottleneck": Bottleneck.from_tokens(tokens.host, attention).to(tokens.device)}, True
    elif masks == "library" and not explicit:
        mask = tokens.attention_mask
    elif explicit:
        mask = attention.mask(tokens, inner.config, embedded.dtype)
        if positions is None:  # some families (OPT) count positions by a mask of two dimensions
            positions = torch.arange(embedded.shape[1], device=embedded.device)[None]
    elif attention.is_causal:  # padding is on the right, where no real position looks; kernels are faster without masks
        if inner.config._attn_implementation in ("sdpa", TWO_CALLS):
            unmasked = all(embedded.shape[1] <= limit for limit in _windows(inner) if limit)
    elif tokens.device.type == "cpu" or not attention.takes_mask(inner.config):
        mask = tokens.attention_mask
    elif min(tokens.lengths) < embedded.shape[1]:
        # the library would look for padding in a mask of two dimensions, and wait for the device
        mask = attention.mask(tokens, inner.config, embedded.dtype)
        if not is_bert_type(inner):  # such encoders count positions themselves, RoBERTa from another number than 0
            positions = torch.arange(embedded.shape[1], device=embedded.device)[None]
    by_config = masks == "library" and attention.is_causal is False  # whose windows may differ
    is_causal = None if by_config else attention.is_causal is not False
    configured = with_configuration(inner, is_causal=is_causal, num_layers=num_layers, library_masks=not unmasked)
    if getattr(inner, "hidden_size_per_layer_input", None):
        in_vocabulary = (tokens.input_ids < inner.vocab_size) & (tokens.segment_ids != Segment.SOFT)
        options |= per_layer_inputs(inner, tokens.input_ids, in_vocabulary)
    states: Tensor = configured(
        inputs_embeds=embedded, attention_mask=mask, position_ids=positions, use_cache=False, **options
    ).last_hidden_state
    return states


def _run_packed(
    inner: PreTrainedModel, embedded: Tensor, tokens: Tokens, packed: Packed, num_layers: int | None = None
) -> Tensor:
    configured = with_configuration(inner, is_causal=packed.is_causal, num_layers=num_layers, library_masks=False)
    states = configured(
        inputs_embeds=packed.pack(embedded),
        attention_mask=None,
        position_ids=packed.positions,
        use_cache=False,
        packed=packed,
    ).last_hidden_state
    return packed.unpack(states, tokens)


_PACKS: dict[Hashable, bool] = {}


def can_pack(inner: PreTrainedModel, attention: Attention) -> bool:
    """Return whether a model on a CPU reads texts that follow each other in one row as it reads them apart.

    Measured once per model class, kernel and pattern in a process. Never where texts are encoded: batches sorted by
    length have little padding.
    """
    is_causal, config = attention.is_causal, inner.config
    if inner.device.type != "cpu" or config._attn_implementation != TWO_CALLS or torch.is_inference_mode_enabled():
        return False
    if is_causal is None or causal_layers(inner) or getattr(inner, "hidden_size_per_layer_input", None):
        return False
    key = key_of(inner, attention)
    if key not in _PACKS:
        masks = masks_for(inner, attention)

        def together(embedded: Tensor, tokens: Tokens) -> Tensor:
            return _run_packed(inner, embedded, tokens, Packed.from_tokens(tokens, is_causal=is_causal))

        _PACKS[key] = give_same_states(inner, partial(_run, inner, attention=attention, masks=masks), together)
    return _PACKS[key]


def pack(inner: PreTrainedModel, tokens: Tokens, attention: Attention) -> Packed | None:
    """Return a batch as one row without padding, which a model on a CPU reads faster; None where it does not."""
    width = tokens.input_ids.shape[1]
    if len(tokens) == 1 or tokens.position_ids is not None or not can_pack(inner, attention):
        return None
    if any(limit and width > limit for limit in _windows(inner)):
        return None
    return Packed.from_tokens(tokens, is_causal=attention.is_causal is True)


def cost_of(inner: PreTrainedModel, attention: Attention, *, training: bool) -> Cost:
    """Return what a forward pass of a model takes."""
    return Cost.for_layers(layers_of(inner), training=training, packed=can_pack(inner, attention))


def _windows(inner: PreTrainedModel) -> list[int | None]:
    return [getattr(inner.config, name, None) for name in ("sliding_window", "attention_chunk_size")]


_CAUSAL: dict[Hashable, Masks | None] = {}
_EXPLICIT: dict[Hashable, bool] = {}
BidirectionalBy = Literal["flag", "mask", "own"]
_BIDIRECTIONAL: dict[Hashable, BidirectionalBy] = {}  # a failure is not kept: another model's weights may be whole
_VERIFIED: set[Hashable] = set()


def masks_for(inner: PreTrainedModel, attention: Attention) -> Masks:
    """Return what masks a model is called with under an attention pattern that it was measured to follow."""
    if attention.is_causal:
        return causal_masks(inner)
    if attention.is_causal is None:  # two calls of a bottleneck know nothing of the library's masks
        return "explicit" if causal_masks(inner) == "library" else "usual"
    ways: dict[BidirectionalBy | None, Masks] = {"mask": "explicit", "own": "library"}
    return ways.get(bidirectional_by(inner), "usual")


def causal_masks(inner: PreTrainedModel) -> Masks:
    """Return the masks with which a model has the states of the library's own call, which is given a mask of ones.

    Measured once per configuration and kernel in a process, on a short text, with windows that are shorter than it.
    Without a mask, kernels are faster; but some models compute positions from their mask (Falcon with ALiBi), or
    change it in every layer (Doge).

    Raises:
        ValueError: it has other states with either.
    """
    key = key_of(inner)
    if key not in _CAUSAL:
        ways: tuple[Masks, ...] = ("usual", "library")
        rounding = max(1e-4, torch.finfo(inner.dtype).eps)  # in bfloat16, lost positions may be within 5e-2
        tried = ((masks, same) for same in (rounding, None) for masks in ways)
        _CAUSAL[key] = next((masks for masks, same in tried if _as_library(inner, masks, same=same)), None)
    return _CAUSAL[key] or _refuse(inner)


def _refuse(inner: PreTrainedModel) -> NoReturn:
    raise ValueError(
        f"{type(inner).__name__} with attn_implementation={inner.config._attn_implementation} has other hidden states "
        "from input embeddings, which embrew calls it with, than from the ids of the same text, or none; choose "
        "another model, or try attn_implementation: eager or sdpa"
    )


def takes_explicit(inner: PreTrainedModel) -> bool:
    """Return whether a causal model has the library's states with embrew's mask of four dimensions; measured likewise.

    So what an explicit mask replaces holds nothing else: no positions, and windows as they are understood here.
    """
    key = key_of(inner)
    if key not in _EXPLICIT:
        _EXPLICIT[key] = _as_library(inner, "explicit")
    return _EXPLICIT[key]


def _as_library(
    inner: PreTrainedModel, masks: Masks, attention: Attention = CAUSAL, *, same: float | None = None
) -> bool:
    return all(
        give_same_states(
            part,
            partial(library_states, part),
            partial(_run, part, attention=attention, masks=masks),
            (PROBE_WIDTH + 1,),
            same=same,
        )
        for part in with_short_windows(inner)
    )


def bidirectional_by(inner: PreTrainedModel) -> BidirectionalBy | None:
    """Return how a model is made bidirectional: by the library's flag, by an explicit mask, or not at all (None).

    Measured once per configuration and kernel in a process: some families ignore the flag, or follow it only in
    batches with padding. A model whose configuration says that it is (`own`) must have the library's states.
    """
    key = key_of(inner)
    if key not in _BIDIRECTIONAL:
        attention = Attention("bidirectional")
        ways: tuple[tuple[BidirectionalBy, Masks], ...] = (("flag", "usual"), ("mask", "explicit"))
        is_bidirectional = reads_both_ways(inner.config)
        for by, masks in (("flag", "usual"), ("own", "library")) if is_bidirectional else ways:
            takes = (
                _as_library(inner, masks, attention) if is_bidirectional else masks == "usual" or takes_explicit(inner)
            )
            if takes and follows_pattern(inner, attention, partial(_run, inner, attention=attention, masks=masks)):
                _BIDIRECTIONAL[key] = by
                break
    return _BIDIRECTIONAL.get(key)


def check_attention(inner: PreTrainedModel, attention: Attention, original: Attention = CAUSAL) -> None:
    """Measure that a model follows an attention pattern; once per configuration, kernel and pattern in a process.

    Args:
        inner: the model without its head.
        attention: the pattern.
        original: pattern of the library's own call, whose states must be the same here.

    Raises:
        ValueError: they are not, or it does not follow the pattern; says which patterns it does follow.
    """
    key = key_of(inner, attention)
    if key in _VERIFIED:
        return
    layers_of(inner)  # raises where they are not known
    if reads_both_ways(inner.config) and original.is_causal:
        if attention.is_causal is not False:
            raise ValueError(
                f"attention={attention.mode}, but the configuration of this {type(inner).__name__} says that tokens "
                "read each other; set attention: bidirectional"
            )
    elif original.is_causal:
        causal_masks(inner)
    elif not _as_library(inner, "usual", original):
        _refuse(inner)
    if not _follows(inner, attention):
        others = [Attention(mode) for mode in MODES]
        modes = [other.mode for other in others if other != attention and _follows(inner, other)]
        name = f"attention={attention.mode}{' with a bottleneck' if attention.bottleneck else ''}"
        raise ValueError(
            f"{name}: {type(inner).__name__} with attn_implementation={inner.config._attn_implementation} does not "
            "follow it (a token was changed, and other positions moved than should); "
            + (f"it follows {', '.join(modes)}" if modes else "it follows none of the others either")
            + "; set encoder.attention to that, or try attn_implementation: eager or sdpa"
        )
    _VERIFIED.add(key)


def try_two_calls(inner: PreTrainedModel) -> bool:
    """Switch a model to the two calls of a bottleneck; back to sdpa where it does not follow them (StableLM)."""
    if not use_two_calls(inner):
        return False
    try:
        check_attention(inner, Attention("causal", bottleneck="visible"))
    except ValueError:
        inner.config._attn_implementation = "sdpa"
        return False
    return True


def _follows(inner: PreTrainedModel, attention: Attention) -> bool:
    if attention.is_causal is False:
        return bidirectional_by(inner) is not None
    if attention.is_causal is None and not takes_explicit(inner):
        return False
    layers = 1 if attention.bottleneck else None  # through two layers, a target knows the text by way of the memory
    masks = masks_for(inner, attention)
    run = partial(_run, inner, attention=attention, num_layers=layers, masks=masks)
    return follows_pattern(inner, attention, run, num_layers=layers)


def read_layers(
    inner: PreTrainedModel,
    embedded: Tensor,
    tokens: Tokens,
    attention: Attention,
    read: Callable[[Tensor], Tensor],
    num_layers: int | None = None,
) -> list[Tensor]:
    """Return what `read` makes of the states of every layer, or the first few, as soon as the layer is done.

    The final norm is included.
    """
    path = path_of_layers(inner)
    holder = inner.get_submodule(path.rpartition(".")[0])  # OPT's decoder holds both the norm and the layers
    found_norms = (getattr(holder, name, None) for name in FINAL_NORMS)
    norm = next((module for module in found_norms if module is not None), None)
    if getattr(holder, "project_out", None) is not None:
        raise ValueError(
            f"{type(inner).__name__} projects its states after the last layer; its layers are not comparable"
        )
    if norm is None and path in POST_NORM:
        norm = nn.Identity()
    if norm is None:
        raise ValueError(f"{type(inner).__name__} has no final norm under a name known here ({', '.join(FINAL_NORMS)})")
    outputs: list[Tensor] = []
    *below, top = layers_of(inner)[:num_layers]
    packed = pack(inner, tokens, attention)

    def keep(states: Tensor) -> None:
        states = norm(states)
        outputs.append(read(states if packed is None else packed.unpack(states, tokens)))

    taps = [_Tap(layer, after=keep) for layer in below]
    last = forward(inner, embedded, tokens, attention, num_layers, layers=[*taps, top], packed=packed)
    return [*outputs, read(last)]


def raw_states(inner: PreTrainedModel, embedded: Tensor, tokens: Tokens, attention: Attention) -> list[Tensor]:
    """Return the first layer's input, the output of every layer but the last, and the final states.

    The `hidden_states` of the library, which are not used, since it gathers them by hooks on the layers, which
    would stay there.
    """
    inputs: list[Tensor] = []
    taps = [_Tap(layer, before=inputs.append) for layer in layers_of(inner)]
    last = forward(inner, embedded, tokens, attention, layers=taps)
    return [*inputs, last]


class _Tap(Wrapper):
    """A layer that also passes its input or its output to a callback."""

    def __init__(
        self,
        layer: nn.Module,
        *,
        before: Callable[[Tensor], None] | None = None,
        after: Callable[[Tensor], None] | None = None,
    ) -> None:
        super().__init__(layer)
        self.before, self.after = before, after

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        if self.before is not None:
            self.before(args[0] if args else kwargs["hidden_states"])
        output = self.wrapped(*args, **kwargs)
        if self.after is not None:
            self.after(output[0] if isinstance(output, tuple) else output)
        return output
