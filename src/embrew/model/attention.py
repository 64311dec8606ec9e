"""Which tokens read which others, and whether a model follows it; dropout on attention weights."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from embrew.settings.encoder import AttentionMode
from embrew.text.tokens import Row, Segment, Tokens, select_masked

TWO_CALLS = "embrew_bottleneck"  # sdpa that can also be called twice; see `embrew.model.kernels`
MODES: tuple[AttentionMode, ...] = get_args(AttentionMode)


def first_prompt(tokens: Tokens) -> Tensor:
    """Return `(batch, tokens)` bool: each row's first position, where it is not part of the text (BOS)."""
    real = tokens.attention_mask.bool()
    return real & (real.long().cumsum(1) == 1) & tokens.where(Segment.PROMPT)


@dataclass(frozen=True)
class Attention:
    """An attention pattern over segments.

    Query position i reads key position j iff both are real (or i = j), j is in the trunk or in i's own
    branch, the pair of segments is not hidden, and j <= i wherever the pair is causal.

    Attributes:
        mode: `causal`; `bidirectional`: every real position reads every real position; `memory_causal`: text
            bidirectional and blind to the memory, memory tokens causal (the printed form of LLM2Comp's Eq. 1).
        hide: pairs (reader, read) of segments that are hidden.
        bottleneck: a target reads the memory and itself only, so that all it knows of the text has passed through the
            memory; `visible`: it reads the row's first position too, where that is none of the text's (BOS, on which
            models rest their attention), and which causal attention lets know nothing; `strict`: not even that.
    """

    mode: AttentionMode = "causal"
    hide: tuple[tuple[Segment, Segment], ...] = ()
    bottleneck: Literal["visible", "strict"] | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"attention={self.mode!r}; choose from {', '.join(MODES)}")
        if self.bottleneck and self.mode != "causal":
            raise ValueError(f"a bottleneck under {self.mode} attention: a text that reads its target lets it through")

    @property
    def is_causal(self) -> bool | None:
        """The library's flag for this pattern, or None where only a mask can say it."""
        if self.hide or self.bottleneck or self.mode == "memory_causal":
            return None
        return self.mode == "causal"

    def visible(self, tokens: Tokens, window: int | None = None) -> Tensor:
        """Return the pattern as `(batch, tokens, tokens)` bool: [b, i, j] is true where position i reads position j.

        Args:
            tokens: a batch.
            window: a sliding window in tokens, as the library applies it: the last `window` positions (itself
                included) where attention is causal, distances up to `window` where it is not.
        """
        segment_ids = tokens.segment_ids
        width = segment_ids.shape[1]
        positions = torch.arange(width, device=segment_ids.device)
        reader, read = segment_ids[:, :, None], segment_ids[:, None, :]
        earlier = positions[None, :, None] >= positions[None, None, :]
        visible = (reader != Segment.PAD) & (read != Segment.PAD)
        if tokens.branch_ids is not None:
            read_branch = tokens.branch_ids[:, None, :]
            visible = visible & ((read_branch == 0) | (read_branch == tokens.branch_ids[:, :, None]))
        if self.mode == "causal":
            visible = visible & earlier
        elif self.mode == "memory_causal":
            visible = visible & (earlier | (read != Segment.MEMORY))
        if self.bottleneck:
            through = (read == Segment.MEMORY) | (read == Segment.TARGET)
            if self.bottleneck == "visible":
                through = through | first_prompt(tokens)[:, None, :]
            visible = visible & ((reader != Segment.TARGET) | through)
        for reading, hidden in self.hide:
            visible = visible & ~((reader == reading) & (read == hidden))
        if window is not None:
            position_ids = positions[None] if tokens.position_ids is None else tokens.position_ids
            distance = position_ids[:, :, None] - position_ids[:, None, :]
            visible = visible & (distance < window if self.mode == "causal" else distance.abs() <= window)
        return visible | (positions[:, None] == positions[None, :])

    @staticmethod
    def takes_mask(config: PreTrainedConfig) -> bool:
        """Return whether the model's attention kernel takes an explicit mask."""
        return (config._attn_implementation or "sdpa") in ("sdpa", TWO_CALLS, "eager", "flex_attention")

    def mask(self, tokens: Tokens, config: PreTrainedConfig, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Return the explicit mask in the form the model's attention kernel takes: `(batch, 1, tokens, tokens)`.

        Bool for sdpa; additive with the dtype's minimum for eager (which *adds* a bool mask as 0 and 1, silently
        wrong). For models with sliding layers it holds their window, per layer type where the family mixes types.

        Raises:
            ValueError: the kernel cannot take a mask (flash attention).
        """
        kernel = config._attn_implementation or "sdpa"
        if not self.takes_mask(config):
            raise ValueError(
                f"attn_implementation={kernel!r} takes no mask, which this attention pattern needs "
                f"({self}); use attn_implementation=sdpa"
            )

        def form(window: int | None) -> Tensor:
            visible = self.visible(tokens, window)[:, None]
            if kernel in ("sdpa", TWO_CALLS):
                return visible
            hidden = torch.finfo(dtype).min
            return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, hidden)

        window = getattr(config, "sliding_window", None) or None  # 0 says that there is none (Qwen2-MoE)
        if window and self.mode != "causal" and has_own_window(config):
            window -= 1
        kinds = getattr(config, "layer_types", None)
        if kinds and "sliding_attention" in kinds:
            return {"full_attention": form(None), "sliding_attention": form(window)}
        return form(None if kinds else window)  # dots1 has a window, and layers without one


PROBE_WIDTH, MEMORY, PADDING = 6, 2, 3  # tokens of the probe, memory tokens among them, and padding after them
WINDOWS, SHORT_WINDOW = ("sliding_window", "attention_chunk_size"), 3
MIN_CHANGE = 1e-6  # of the largest state
logger = logging.getLogger(__name__)
PROBE_ERRORS = (ValueError, TypeError, RuntimeError, IndexError, AttributeError, KeyError, NotImplementedError)


_CONFIGS: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()


def key_of(inner: PreTrainedModel, *more: Hashable) -> tuple[Hashable, ...]:
    """Return what decides how a model reads texts: class, configuration, kernel, arithmetic, and what is given."""
    if inner not in _CONFIGS:
        settings = {key: value for key, value in inner.config.to_dict().items() if not key.startswith("_")}
        _CONFIGS[inner] = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
    return type(inner), _CONFIGS[inner], inner.config._attn_implementation, inner.dtype, inner.device.type, *more


def library_states(inner: PreTrainedModel, embedded: Tensor, tokens: Tokens) -> Tensor:
    """Return states as the library's own call gives them, of one text at a time.

    Args:
        inner: the model without its head.
        embedded: `(batch, tokens, hidden)` in the model's dtype; read only where its embedding matrix has another one.
        tokens: texts of vocabulary tokens.
    """
    by_ids = inner.get_input_embeddings()(tokens.input_ids[:1]).dtype == inner.dtype
    name, inputs = ("input_ids", tokens.input_ids) if by_ids else ("inputs_embeds", embedded)
    masks = torch.ones_like(tokens.input_ids)
    rows = [
        inner(**{name: inputs[i, None, :n]}, attention_mask=masks[i, None, :n], use_cache=False)[0][0]
        for i, n in enumerate(tokens.lengths)
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def with_short_windows(inner: PreTrainedModel) -> list[Any]:
    """Return a model, and a shallow copy whose windows are shorter than the texts of `agree`, if it has any."""
    short = {name: SHORT_WINDOW for name in WINDOWS if (getattr(inner.config, name, None) or 0) > SHORT_WINDOW}
    if not short:
        return [inner]
    copied = copy.copy(inner)
    copied.config = copy.copy(inner.config)
    for name, length in short.items():
        setattr(copied.config, name, length)
    return [inner, copied]


def has_own_window(config: PreTrainedConfig) -> bool:
    """Return whether a model is bidirectional by its family's own masks (Gemma), whose windows are one shorter.

    Exports write the field into configurations of other families, too, for servers that read it.
    """
    field = "use_bidirectional_attention"
    return hasattr(type(config), field) and getattr(config, field) is True


def follows_pattern(
    inner: Any, attention: Attention, run: Callable[[Tensor, Tokens], Tensor], *, num_layers: int | None = None
) -> bool:
    """Return whether the states that `run` gives depend on each other as an attention pattern says.

    With and without right padding. A pattern that the model cannot take at all is not followed either.

    Args:
        inner: the model without its head.
        attention: the pattern.
        run: function from embeddings `(batch, tokens, hidden)` and tokens to states `(batch, tokens, hidden)`.
        num_layers: number of layers that it runs; all by default.
    """
    layers = num_layers or int(inner.config.num_hidden_layers)
    window = getattr(inner.config, "sliding_window", None)
    width = max(2, min(PROBE_WIDTH, window)) if isinstance(window, int) and window > 0 else PROBE_WIDTH
    states_by_padding: list[Tensor] = []
    try:
        with evaluating(inner), torch.no_grad(), torch.autocast(inner.device.type, enabled=False):
            for padding in (0, PADDING):
                tokens = _probe(inner, attention, width, padding)
                states = run(inner.get_input_embeddings()(tokens.input_ids).to(inner.dtype), tokens)[:, :width].float()
                moved = (states[1:] - states[:1]).abs().amax(-1).T  # [i, j]: state i under a change of token j
                reads = attention.visible(tokens)[0, :width, :width].double()
                reaches = torch.linalg.matrix_power(reads, layers) > 0
                scale, noise = states[0].abs().max(), max(MIN_CHANGE, 4 * torch.finfo(inner.dtype).eps)
                if not torch.isfinite(states).all():
                    return False
                if not ((moved[reaches] > MIN_CHANGE * scale).all() and (moved[~reaches] <= noise * scale).all()):
                    return False
                states_by_padding.append(states[0])
    except torch.OutOfMemoryError:
        raise
    except PROBE_ERRORS:
        logger.debug("%s cannot take %s", type(inner).__name__, attention, exc_info=True)
        return False
    same = 1e-4 if inner.dtype == torch.float32 else 5e-2
    return bool((states_by_padding[0] - states_by_padding[1]).abs().max() <= same * states_by_padding[0].abs().max())


def give_same_states(
    inner: Any,
    first: Callable[[Tensor, Tokens], Tensor],
    second: Callable[[Tensor, Tokens], Tensor],
    lengths: Sequence[int] = (PROBE_WIDTH + 1, 2, 4, 3),
    *,
    same: float | None = None,
) -> bool:
    """Return whether two ways to run a model give the same states.

    Args:
        inner: the model without its head.
        first: function from embeddings `(batch, tokens, hidden)` and tokens to states `(batch, tokens, hidden)`.
        second: likewise.
        lengths: tokens of each text.
        same: largest difference, of the largest state; 1e-4 in float32 and 5e-2 in shorter types by default.
    """
    try:
        vocabulary = inner.get_input_embeddings().weight.shape[0]
        some = torch.linspace(0.05 * vocabulary, 0.9 * vocabulary, 2 * max(lengths)).long().tolist()
        tokens = Tokens.pad([Row.labelled(some[n - 1 : 2 * n - 1], Segment.TEXT) for n in lengths]).to(inner.device)
        with evaluating(inner), torch.no_grad(), torch.autocast(inner.device.type, enabled=False):
            embedded = inner.get_input_embeddings()(tokens.input_ids).to(inner.dtype)
            states, others = (
                select_masked(run(embedded, tokens), tokens.attention_mask.bool()).float() for run in (first, second)
            )
    except torch.OutOfMemoryError:
        raise
    except PROBE_ERRORS:
        logger.debug("%s cannot run in one of two ways", type(inner).__name__, exc_info=True)
        return False
    if same is None:
        same = 1e-4 if inner.dtype == torch.float32 else 5e-2
    return bool((states - others).abs().max() <= same * states.abs().max())


def _probe(inner: Any, attention: Attention, width: int, padding: int) -> Tokens:
    """Return a batch: a row of tokens, then the same row with its first, second, … token changed."""
    vocabulary = inner.get_input_embeddings().weight.shape[0]
    some = torch.linspace(0.05 * vocabulary, 0.6 * vocabulary, width).long()
    ids = some.repeat(width + 1, 1)
    ids[1:][torch.eye(width, dtype=torch.bool)] = (some + max(1, int(0.3 * vocabulary))) % vocabulary
    segments = torch.full_like(ids, int(Segment.TEXT))
    segments[:, -MEMORY if width > MEMORY else width :] = int(Segment.MEMORY)
    if attention.bottleneck:
        segments[:, -1] = int(Segment.TARGET)
    pad = torch.zeros(width + 1, padding, dtype=torch.long)
    return Tokens(torch.cat([ids, pad], 1), torch.cat([segments, pad], 1)).to(inner.device)


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Within this context, a module is in evaluation mode; the training flags of its parts are restored."""
    flags = [(part, part.training) for part in module.modules() if part.training]
    try:
        for part, _ in flags:
            part.training = False
        yield
    finally:
        for part, _ in flags:
            part.training = True


DROPOUTS = ("attention_dropout", "attn_dropout")  # of an attention layer; OPT's is named `dropout`


def set_attention_dropout(inner: PreTrainedModel, probability: float) -> None:
    """Set the dropout on attention weights in every layer (SimCSE's noise), and measure that it has an effect.

    Raises:
        ValueError: the family has no such dropout, or does not apply it with this attention kernel.
    """
    held = [(module, name) for module in inner.modules() for name in _dropout_names(module)]
    if probability and not held:
        raise ValueError(f"{type(inner).__name__} has no attention dropout; use lora_dropout instead")
    if probability and not _dropout_has_effect(inner, held):
        _set_dropout(held, 0.0)
        raise ValueError(
            f"{type(inner).__name__} does not apply its attention dropout with attn_implementation="
            f"{inner.config._attn_implementation}; use lora_dropout instead"
        )
    _set_dropout(held, probability)


def _set_dropout(held: list[tuple[nn.Module, str]], probability: float) -> None:
    for module, name in held:
        dropout = getattr(module, name)
        if isinstance(dropout, nn.Dropout):
            dropout.p = float(probability)
        else:
            setattr(module, name, float(probability))


def _dropout_names(module: nn.Module) -> list[str]:
    names = list(DROPOUTS)
    if "Attention" in type(module).__name__ and isinstance(getattr(module, "dropout", None), float):
        names.append("dropout")
    return [name for name in names if isinstance(getattr(module, name, None), nn.Dropout | float | int)]


def _dropout_has_effect(inner: Any, held: list[tuple[nn.Module, str]]) -> bool:
    """Return whether two forward passes differ with this dropout alone, at one half."""
    weight = inner.get_input_embeddings().weight
    ids = torch.linspace(0.1 * len(weight), 0.8 * len(weight), 16).long()[None].to(weight.device)
    cuda = [weight.device] if weight.device.type == "cuda" else []
    layers = [part for module, name in held for part in (module, getattr(module, name)) if isinstance(part, nn.Module)]
    _set_dropout(held, 0.5)
    with evaluating(inner), torch.no_grad(), torch.random.fork_rng(devices=cuda):
        try:
            for layer in layers:
                layer.training = True
            read = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
            first, second = (inner(**read)[0] for _ in range(2))
        finally:
            for layer in layers:
                layer.training = False
    return not torch.equal(first, second)


def dropout_probabilities(model: nn.Module) -> Iterator[tuple[nn.Module | PreTrainedConfig, str]]:
    """Return modules and configurations with the names of their probabilities of dropout and of skipping a layer."""
    of_modules = (getattr(module, "config", None) for module in model.modules())
    configs = {id(config): config for config in of_modules if isinstance(config, PreTrainedConfig)}
    holders: list[nn.Module | PreTrainedConfig] = [*model.modules(), *configs.values()]
    for holder in holders:
        names = ["p"] if isinstance(holder, nn.Dropout) else []
        for name in names + [name for name, value in vars(holder).items() if "drop" in name and type(value) is float]:
            yield holder, name
