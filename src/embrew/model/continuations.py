"""Measure whether two continuations of a text in one row get the hidden states that each gets alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from embrew.model.attention import Attention
from embrew.model.forward import forward
from embrew.model.layers import Wrapper, layers_of, path_of_layers, with_layers
from embrew.model.reach import FAILED, at_rest, local_windows
from embrew.text.tokens import Row, Segment, Tokens

SHORTEST = 9  # lowest number of tokens of a text in a probe
SAME = 1e-4  # of the largest state, in float32
_VERIFIED: set[Any] = set()  # a failure is not kept: another model's weights may be whole


def check_branches(inner: Any, blocks: tuple[int, int], longest: int) -> None:
    """Measure that a row with two branches has the states of the two plain rows; once per class, kernel and settings.

    In float32, without dropout, and after a text longer than a local window where the length limit allows it.

    Args:
        inner: the model without its head.
        blocks: how many tokens the branches have.
        longest: largest number of tokens of the text before them.

    Raises:
        ValueError: the states differ, or the model cannot take such a row.
    """
    settings = inner.config.to_dict()
    width = max(1, min(longest, max(SHORTEST, 1 + max(local_windows(settings), default=0))))
    key = type(inner), inner.config._attn_implementation, repr(settings), blocks, width
    if key in _VERIFIED:
        return
    name = f"{type(inner).__name__} with attn_implementation={inner.config._attn_implementation}"
    given = f"a text of {width} tokens with two continuations of {blocks[0]} and {blocks[1]} in one row"
    advice = (
        "llama2vec trains on such rows; use a model family whose attention takes a mask and whose positions are rotary "
        "or learned (Llama, Qwen, Mistral), or try attn_implementation: sdpa or eager"
    )
    try:
        difference = _difference(inner, width, blocks)
    except torch.OutOfMemoryError:
        raise
    except FAILED as error:
        raise ValueError(f"{name} cannot read {given} ({type(error).__name__}: {error}); {advice}") from error
    if not difference <= SAME:
        raise ValueError(
            f"{name} was given {given}, and its states are not those of each continuation alone (largest difference "
            f"{difference:.1e} of the largest state, allowed {SAME:.0e}): its attention counts positions in the row; "
            f"{advice}"
        )
    _VERIFIED.add(key)


def _difference(inner: Any, width: int, blocks: tuple[int, int]) -> float:
    """Return the largest difference between states with two branches and without, relative to the largest state."""
    words = inner.get_input_embeddings().weight.shape[0]
    rows = [_rows(length, blocks, words, row) for row, length in enumerate((width, max(1, width // 2)))]
    tokens = Tokens.pad([text + first + second for text, first, second in rows])
    branches = torch.zeros_like(tokens.input_ids)
    for i, (text, first, _) in enumerate(rows):
        middle = len(text.ids) + len(first.ids)
        branches[i, len(text.ids) : middle] = 1
        branches[i, middle : middle + blocks[1]] = 2
    worst, largest = 0.0, 0.0
    with at_rest(inner), torch.no_grad(), torch.autocast(inner.device.type, enabled=False):
        model = inner if _is_float32(inner) else _in_float32(inner)
        together = _states(inner, model, replace(tokens, branch_ids=branches))
        for states, (text, first, second) in zip(together, rows, strict=True):
            begin, middle = len(text.ids), len(text.ids) + len(first.ids)
            one, other = (_states(inner, model, Tokens.pad([text + block]))[0] for block in (first, second))
            pairs = (states[:middle], one), (states[middle : middle + blocks[1]], other[begin:])
            worst = max(worst, *(float((ours - plain).abs().max()) for ours, plain in pairs))
            largest = max(largest, float(one.abs().max()), float(other.abs().max()))
            if not all(bool(torch.isfinite(found).all()) for pair in pairs for found in pair):
                return float("nan")
    return worst / largest


def _rows(length: int, blocks: tuple[int, int], words: int, seed: int) -> tuple[Row, Row, Row]:
    """Return a text and its two continuations, of tokens from all over the vocabulary."""
    count = length + sum(blocks)
    ids = ((torch.arange(count) * 7919 + 104729 * (seed + 1)) % words).tolist()
    text, first, second = ids[:length], ids[length : length + blocks[0]], ids[length + blocks[0] :]
    return Row.of(text, Segment.TEXT), Row.of(first, Segment.PROMPT), Row.of(second, Segment.PROMPT)


def _states(inner: Any, model: Any, tokens: Tokens) -> Tensor:
    tokens = tokens.to(inner.device)
    embedded = inner.get_input_embeddings()(tokens.input_ids).float()
    return forward(model, embedded, tokens, Attention("causal"), None).float()


def _is_float32(inner: Any) -> bool:
    return all(p.dtype == torch.float32 for p in inner.parameters() if p.is_floating_point())


def _in_float32(inner: Any) -> Any:
    """Return a shallow copy whose layers run in float32, one at a time; its input embeddings are not converted."""
    others = _others_in_float32(inner, path_of_layers(inner), inner.get_input_embeddings())
    return with_layers(others, [_Float32(layer) for layer in layers_of(inner)])


def _others_in_float32(module: Any, path: str, words: nn.Module) -> Any:
    """Return a shallow copy with float32 copies of all but the layers and the embeddings of words."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    name, _, rest = path.partition(".")
    for key, child in module._modules.items():
        if key == name:
            copied._modules[key] = _others_in_float32(child, rest, words) if rest else child
        elif child is not None and child is not words:
            copied._modules[key] = copy.deepcopy(child).float()
    return copied


class _Float32(Wrapper):
    """A layer that runs as a copy in float32, which exists for the time of a call."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        return copy.deepcopy(self.wrapped).float()(*args, **kwargs)
