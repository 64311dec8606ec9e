"""The layers of a model without its head: found, replaced in a shallow copy; their positions; weights cast once."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from embrew.text.tokens import Tokens

ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention")
SHARED = "encoder.albert_layer_groups"  # one group of layers, which runs as often as the configuration says
LAYERS = ("layers", "h", "blocks", "encoder.layer", "transformer.layer", "decoder.layers", SHARED)


def path_of_layers(inner: Any) -> str:
    """Return where a model without its head keeps its layers, as a dotted path.

    Raises:
        ValueError: under no name known here, or layers are shared in several groups.
    """
    for path in LAYERS:
        if has_module(inner, path):
            if path == SHARED and inner.config.num_hidden_groups not in (1, inner.config.num_hidden_layers):
                raise ValueError(
                    f"{type(inner).__name__} shares its layers in {inner.config.num_hidden_groups} groups "
                    "(num_hidden_groups); embrew reads models that share all layers, or none"
                )
            return path
    raise ValueError(f"{type(inner).__name__} has no layers under a name known here ({', '.join(LAYERS)})")


def has_module(module: nn.Module, path: str) -> bool:
    """Return whether a module has one of that dotted path."""
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True


def layers_of(inner: Any) -> list[nn.Module]:
    """Return the layers of a model without its head, in the order in which they run; ALBERT's are all the same."""
    layers = list(inner.get_submodule(path_of_layers(inner)))
    return layers * inner.config.num_hidden_layers if len(layers) == 1 and has_module(inner, SHARED) else layers


def causal_layers(inner: PreTrainedModel | None) -> list[str]:
    """Return the kinds of the layers that mix tokens without attention, so from left to right in every mode."""
    kinds = getattr(getattr(inner, "config", None), "layer_types", None) or ()
    return [kind for kind in kinds if kind not in ATTENTION]


def per_layer_inputs(inner: Any, input_ids: Tensor, in_vocabulary: Tensor) -> dict[str, Tensor]:
    """Return the second embedding that some families (Gemma 4) add in every layer, as an argument of the model.

    From `inputs_embeds` the library would look it up by a comparison with the whole vocabulary, which finds no learned
    tokens. As with the family's own images, these get the row of the padding token.

    Args:
        inner: the model without its head.
        input_ids: `(batch, tokens)`.
        in_vocabulary: bool `(batch, tokens)`, true where an id is one of the vocabulary.
    """
    if not getattr(inner, "hidden_size_per_layer_input", None):
        return {}
    padding = getattr(inner.config, "pad_token_id", None) or 0
    return {
        "per_layer_inputs": inner.get_per_layer_inputs(
            input_ids.where(in_vocabulary, input_ids.new_tensor(padding)), None
        )
    }


def with_module(module: Any, path: str, part: nn.Module) -> Any:
    """Return a shallow copy with `part` at a dotted path; all other modules and weights are the same."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    name, _, rest = path.partition(".")
    copied._modules[name] = with_module(getattr(module, name), rest, part) if rest else part
    return copied


def with_layers(inner: PreTrainedModel, layers: Sequence[nn.Module]) -> Any:
    """Return a shallow copy of a model without its head, with other layers."""
    copied = with_module(inner, path_of_layers(inner), nn.ModuleList(layers))
    if has_module(inner, SHARED):
        copied.config = copied.encoder.config = copy.copy(inner.config)
        copied.config.num_hidden_layers = copied.config.num_hidden_groups = len(layers)
    return copied


def reads_both_ways(config: PreTrainedConfig) -> bool:
    """Return whether a causal LM's configuration says that its tokens read each other, as in many embedding models."""
    flags = getattr(config, "is_causal", None), getattr(config, "use_bidirectional_attention", None)
    return flags[0] is False or flags[1] is True


def with_configuration(
    inner: Any, *, is_causal: bool | None, num_layers: int | None = None, library_masks: bool = True
) -> Any:
    """Return the same modules and weights under another configuration: causal or not, all layers or the first few.

    With `is_causal` None, as their configuration says.

    Without `library_masks`, the library makes no mask. Where it is given none, it would look for packed texts in the
    positions, and wait for the device; it makes none for a kernel that it does not know, while layers keep theirs.

    The library's `is_causal` argument rewrites the shared configuration for the time of a call, which two threads
    on one model get wrong; a shallow copy with its own configuration does not.
    """
    config = copy.copy(inner.config)
    if is_causal is not None:
        config.is_causal = is_causal
    if not library_masks:
        config._attn_implementation = "embrew_without_masks"
    if num_layers is not None and not getattr(inner, "hidden_size_per_layer_input", None):  # which it divides
        config.num_hidden_layers = num_layers
    path = next((path for path in LAYERS if "." in path and has_module(inner, path)), "")
    if path or (num_layers is not None and num_layers < len(layers_of(inner))):
        copied = with_layers(inner, layers_of(inner)[:num_layers])
        if path == SHARED:
            config.num_hidden_layers = config.num_hidden_groups = copied.config.num_hidden_layers
    else:
        copied = copy.copy(inner)
    copied.config = config
    if path:  # OPT's decoder has a separate configuration
        getattr(copied, path.partition(".")[0]).config = config
    return copied


class Wrapper(nn.Module):
    """A module around another one, which has all attributes of that one."""

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        """Return what a model asks of its layer, such as whether its attention has a sliding window."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("wrapped"), name)


POSITION_NAMES = re.compile(r"(^|[._])(wpe|pos|position|positions|positional)([._]|$)")
COUNT_IN_ROW = ("bloom", "mpt", "gpt_neo")
_MAX_POSITIONS: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()


def max_positions(inner: PreTrainedModel) -> float:
    """Return the largest number of tokens of a row; infinity where positions are rotary, or a bias by distance (ALiBi).

    A causal LM has as many as the rows of its embedding of positions (GPT-2, OPT, GPT-Neo), or of its table of angles
    (GPT-J, CodeGen); a BERT-type encoder what its configuration says.
    """
    if inner not in _MAX_POSITIONS:
        size, limits = getattr(inner.config, "max_position_embeddings", None), [float("inf")]
        if is_bert_type(inner):
            padding = getattr(inner.embeddings, "padding_idx", None)  # RoBERTa counts on from its padding
            limits.append(int(size or 0) - (0 if padding is None else int(padding) + 1))
        else:
            words = inner.get_input_embeddings()
            for name, module in inner.named_modules():
                if isinstance(module, nn.Embedding) and module is not words and POSITION_NAMES.search(name):
                    limits.append(module.num_embeddings - int(getattr(module, "offset", 0)))
                for key, table in module.named_buffers(recurse=False):
                    if (
                        POSITION_NAMES.search(key)
                        and table.ndim == 2
                        and len(table) == size
                        and table.is_floating_point()
                    ):
                        limits.append(len(table))
        _MAX_POSITIONS[inner] = min(limits)
    return _MAX_POSITIONS[inner]


def known_positions(inner: PreTrainedModel) -> float:
    """Return the largest number of tokens of a row that a model was made for, rotary positions included.

    Beyond `max_position_embeddings` of its configuration a model with rotary positions reads on, and predicts badly.
    """
    return min(max_positions(inner), getattr(inner.config, "max_position_embeddings", None) or float("inf"))


def is_bert_type(inner: PreTrainedModel) -> bool:
    """Return whether a model without its head has the layers of a BERT-type encoder."""
    embeddings = getattr(inner, "embeddings", None)
    return embeddings is not None and not isinstance(embeddings, nn.Embedding)


def check_positions(inner: PreTrainedModel, tokens: Tokens) -> None:
    """Raise where a row is longer than the model has positions.

    Raises:
        ValueError: it is; says which parts of a row count.
    """
    limit = max_positions(inner)
    if tokens.input_ids.shape[1] <= limit:
        return
    position_ids = tokens.host.position_ids
    longest = tokens.input_ids.shape[1] if position_ids is None else int(position_ids.max()) + 1
    if longest > limit:
        raise ValueError(
            f"a row has {longest} tokens, and {type(inner).__name__} has positions for {limit:g}; the text, its "
            "instruction, memory tokens, soft prompt, demonstrations and a target after it all count; lower "
            "encoder.max_length, or the length of targets or demonstrations"
        )


def check_takes_branches(inner: PreTrainedModel) -> None:
    """Raise where two continuations of a text in one row would not get the states that each gets alone.

    Raises:
        ValueError: the family takes distances in the row, whatever the positions are (ALiBi, local windows of GPT-Neo),
            or reads neighbours besides attention, which no mask keeps apart (LFM2, Mamba, gated delta).
    """
    if any(isinstance(module, nn.Conv1d) for module in inner.modules()):
        raise ValueError(
            f"{type(inner).__name__} cannot read a text with two continuations in one row: its convolutions read the "
            "end of one as the beginning of the other; llama2vec trains on such rows: use a model family with "
            "attention alone (Llama, Qwen3, Mistral)"
        )
    if inner.config.model_type in COUNT_IN_ROW or getattr(inner.config, "alibi", False):
        raise ValueError(
            f"{type(inner).__name__} cannot read a text with two continuations in one row: its attention counts "
            "positions in the row; llama2vec trains on such rows: use a model family whose attention takes a mask and "
            "whose positions are rotary or learned (Llama, Qwen, Mistral)"
        )


class CastWeight:
    """A copy of a frozen weight in the dtype of autocast, until the weight changes. Copied or pickled, it is empty.

    A change through `weight.data` is not noticed, since PyTorch does not count it.
    """

    def __init__(self) -> None:
        self._copy: tuple[Hashable, Tensor] | None = None

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight in a dtype; itself, if it has that dtype."""
        if weight.dtype == dtype:
            return weight
        version = None if weight.is_inference() else weight._version  # inference tensors have none
        key = weight.data_ptr(), version, dtype
        cached = self._copy  # another thread may replace it
        if cached is None or cached[0] != key:
            with torch.inference_mode(False):  # it serves training too
                cached = self._copy = key, weight.detach().to(dtype)
        return cached[1]

    def __reduce__(self) -> tuple[type[CastWeight], tuple[()]]:
        return CastWeight, ()
