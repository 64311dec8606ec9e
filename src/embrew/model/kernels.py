"""Attention kernels on a CPU: sdpa that is faster in training, rows without padding; the bottleneck in two calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from embrew.model.attention import TWO_CALLS, Attention, agree, first_prompt, key_of, library_states
from embrew.model.batching import Cost, plan
from embrew.model.dropout import drop_out
from embrew.model.lora_linear import common_size
from embrew.text.tokens import Segment, Tokens, upload

APART = Cost(64.0)  # attention over rows of similar length: a call, in units of a padded position


class Group(NamedTuple):
    """Rows of similar length, whose attention is one call.

    Attributes:
        rows: number of rows.
        width: tokens of the longest.
        mask: `(rows, 1, 1, width)` true where a key is real; None under causal attention, or without padding.
    """

    rows: int
    width: int
    mask: Tensor | None


@dataclass(frozen=True)
class Packed:
    """The positions of a batch as one row, with every text's own positions and attention.

    At the end are positions of no text, at least one: matrix products have one of few sizes (`common_size`), and what
    is padding in the batch, or in a group, is the last of them. They get no gradient.

    Attributes:
        positions: `(1, count)` int64, the position of each within its text.
        real: number of positions of texts.
        taken: `(count,)` indices into the flattened batch.
        given: `(batch × tokens,)` indices into `count`.
        groups: for attention.
        grouped: `(rows × width of all groups,)` indices into `count`.
        source: `(count,)` indices into what is grouped.
        is_causal: whether attention is.
    """

    positions: Tensor
    real: int
    taken: Tensor
    given: Tensor
    groups: Sequence[Group]
    grouped: Tensor
    source: Tensor
    is_causal: bool

    @classmethod
    def of(cls, tokens: Tokens, *, is_causal: bool) -> Packed:
        """Return the positions of a batch on the CPU."""
        real = tokens.attention_mask.numpy().astype(bool)
        lengths = real.sum(1)
        total = int(lengths.sum())
        count = common_size(total + 1)
        given = np.full(real.shape, count - 1)
        given[real] = np.arange(total)
        taken, positions, source = np.zeros((3, count), dtype=np.int64)
        taken[:total] = real.reshape(-1).nonzero()[0]
        positions[:total] = real.nonzero()[1]
        groups, grouped, offset = [], [], 0
        for rows in plan(lengths.tolist(), batch_size=len(lengths), cost=APART):
            width = int(lengths[rows[0]])
            here, seen = given[rows, :width], real[rows, :width]
            source[here[seen]] = offset + seen.reshape(-1).nonzero()[0]
            mask = None if is_causal or seen.all() else torch.from_numpy(seen)[:, None, None]
            groups.append(Group(len(rows), width, mask))
            grouped.append(here.reshape(-1))
            offset += here.size
        return cls(
            torch.from_numpy(positions)[None],
            total,
            torch.from_numpy(taken),
            torch.from_numpy(given.reshape(-1)),
            groups,
            torch.from_numpy(np.concatenate(grouped)),
            torch.from_numpy(source),
            is_causal,
        )

    def pack(self, states: Tensor) -> Tensor:
        """Return `(1, count, width)` of `(batch, tokens, width)`."""
        packed: Tensor = _Take.apply(states.flatten(0, 1), self.taken, self.given, None)
        return packed[None]

    def unpack(self, states: Tensor, tokens: Tokens) -> Tensor:
        """Return `(batch, tokens, width)` of `(1, count, width)`; padding has arbitrary states."""
        unpacked: Tensor = _Take.apply(states[0], self.given, self.taken, self.real)
        return unpacked.view(*tokens.input_ids.shape, -1)

    def group(self, states: Tensor) -> list[Tensor]:
        """Return `(rows, width, …)` of each group, of `(count, …)`."""
        grouped: Tensor = _Take.apply(states, self.grouped, self.source, self.real)
        parts = grouped.split([group.rows * group.width for group in self.groups])
        return [part.unflatten(0, group[:2]) for part, group in zip(parts, self.groups, strict=True)]

    def ungroup(self, parts: Sequence[Tensor]) -> Tensor:
        """Return `(count, …)` of the `(rows, width, …)` of each group."""
        together = torch.cat([part.flatten(0, 1) for part in parts])
        ungrouped: Tensor = _Take.apply(together, self.source, self.grouped, None)
        return ungrouped


class _Take(torch.autograd.Function):
    """Rows of a tensor by indices whose inverse is known; PyTorch would sum gradients by index, which is slow."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, index: Tensor, inverse: Tensor, real: int | None) -> Tensor:
        ctx.inverse, ctx.real = inverse, real
        return states.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad = grads[0].index_select(0, ctx.inverse)
        if ctx.real is not None:
            grad[ctx.real :] = 0
        return grad, None, None, None


def sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return attention `(batch, tokens, heads, width)`; on a CPU in float32, and with dropout that costs little.

    Args:
        module: the attention layer.
        query: `(batch, heads, tokens, width)`.
        key: `(batch, key heads, tokens, width)`.
        value: likewise.
        attention_mask: bool or additive `(batch, 1, tokens, keys)`, or None: the layer's own pattern, causal or full.
        dropout: on attention weights.
        scaling: of the products; by default 1 / sqrt(width).
        **kwargs: what else the library passes.
    """
    how: dict[str, Any] = {"scaling": scaling, **kwargs}
    rounds = torch.is_autocast_enabled("cpu") or value.dtype.itemsize < 4
    if query.device.type != "cpu" or not (dropout or rounds):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, **how)
    dtype = value.dtype
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.to(torch.promote_types(attention_mask.dtype, torch.float32))
    with float32_on_cpu(query, key, value) as (query, key, value):
        if dropout and kwargs.get("position_bias") is None and kwargs.get("cache") is None:
            layer = kwargs.get("is_causal")
            layer = getattr(module, "is_causal", True) if layer is None else layer
            causal = attention_mask is None and query.shape[2] > 1 and bool(layer)  # the library's choice
            output = _with_dropout(query, key, value, attention_mask, dropout, scaling, is_causal=causal)
        else:
            output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, **how)
    return output.to(dtype), None


@contextmanager
def float32_on_cpu(*states: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Give shorter states in float32, and switch autocast off, if they are on a CPU."""
    if states[0].device.type != "cpu":
        yield states
        return
    with torch.autocast("cpu", enabled=False):
        yield tuple(state if state.dtype.itemsize >= 4 else state.float() for state in states)


def _with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    *,
    is_causal: bool,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scaling is None else scaling)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1)
    if mask is not None and mask.dtype == torch.bool:
        weights = torch.where(mask.any(-1, keepdim=True), weights, 0.0)  # a position that reads nothing
    return (drop_out(weights, dropout) @ value).transpose(1, 2).contiguous()


@dataclass(frozen=True)
class Walls:
    """Indices of the rows of the two calls, and of the output of each position.

    Attributes:
        before: `(batch, w1)` positions of text and memory, in order; filled up with 0 on the right.
        behind: `(batch, w2)` positions of memory and target (and BOS, where it is visible).
        source: `(batch, tokens)` indices into `[before, behind]`.
    """

    before: Tensor
    behind: Tensor
    source: Tensor

    @classmethod
    def from_tokens(cls, tokens: Tokens, attention: Attention) -> Walls:
        """Return the walls of a batch whose rows are text, memory, target."""
        segments = tokens.segment_ids
        target = segments == Segment.TARGET
        first = ~target & (segments != Segment.PAD)
        second = target | (segments == Segment.MEMORY)
        if attention.bottleneck == "visible":
            second = second | first_prompt(tokens)
        before, behind = _positions(first), _positions(second)
        place = torch.where(target, before.shape[1] + second.long().cumsum(1) - 1, first.long().cumsum(1) - 1)
        return cls(before, behind, place.clamp(min=0))

    def to(self, device: torch.device | str) -> Walls:
        """Return the same on another device."""
        return Walls(*(upload(part, device) for part in (self.before, self.behind, self.source)))


def _positions(chosen: Tensor) -> Tensor:
    """Return `(batch, most)`: the chosen positions of each row, in order, then zeros."""
    count = chosen.sum(1)
    order = torch.argsort((~chosen).long(), dim=1, stable=True)[:, : int(count.max())]
    return torch.where(torch.arange(order.shape[1], device=order.device) < count[:, None], order, 0)


def two_calls(
    query: Tensor, key: Tensor, value: Tensor, walls: Walls, *, dropout: float, scaling: float | None
) -> Tensor:
    """Return attention `(batch, tokens, heads, width)` of a batch with walls; right padding is ignored.

    Args:
        query: `(batch, heads, tokens, width)`.
        key: `(batch, key heads, tokens, width)`.
        value: likewise.
        walls: of the batch.
        dropout: on attention weights.
        scaling: of the products.
    """
    parts, dtype = [], value.dtype
    for places in (walls.before, walls.behind):
        q, k, v = (_take(states, places) for states in (query, key, value))
        with float32_on_cpu(q, k, v) as (q, k, v):
            parts.append(
                nn.functional.scaled_dot_product_attention(
                    q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
                )
            )
    return _take(torch.cat(parts, dim=2), walls.source).transpose(1, 2).contiguous().to(dtype)


def of_each(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, packed: Packed, **how: Any) -> Tensor:
    """Return attention `(1, count, heads, width)` of packed rows, each of which reads itself.

    Args:
        module: the attention layer.
        query: `(1, heads, count, width)`.
        key: `(1, key heads, count, width)`.
        value: likewise.
        packed: the rows.
        **how: as for `sdpa`.
    """
    states = [packed.group(part[0].transpose(0, 1)) for part in (query, key, value)]
    outputs = []
    for group, q, k, v in zip(packed.groups, *states, strict=True):
        output, _ = sdpa(module, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), group.mask, **how)
        outputs.append(output)
    return packed.ungroup(outputs)[None]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    walls: Walls | None = None,
    packed: Packed | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return attention as `sdpa`; with walls, which replace the mask, as `two_calls`; of packed rows, of each alone."""
    if walls is not None:
        return two_calls(query, key, value, walls, dropout=dropout, scaling=scaling), None
    if packed is not None:
        how: dict[str, Any] = {"dropout": dropout, "scaling": scaling, **kwargs, "is_causal": packed.is_causal}
        return of_each(module, query, key, value, packed, **how), None
    return sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


AttentionInterface.register(TWO_CALLS, attend)
AttentionMaskInterface.register(TWO_CALLS, sdpa_mask)


_SAME_AS_SDPA: dict[Any, bool] = {}


def use(inner: Any) -> bool:
    """Switch a model with the library's sdpa to the kernel of two calls; return True if it is active.

    Not where its states would change, measured once per configuration in a process: Falcon asks its configuration for
    `sdpa`, and does without a mask in any other kernel.
    """
    if inner.config._attn_implementation == "sdpa":
        key = key_of(inner)
        if key not in _SAME_AS_SDPA:
            _SAME_AS_SDPA[key] = agree(inner, partial(_under, inner, "sdpa"), partial(_under, inner, TWO_CALLS))
        inner.config._attn_implementation = TWO_CALLS if _SAME_AS_SDPA[key] else "sdpa"
    return bool(inner.config._attn_implementation == TWO_CALLS)


def _under(inner: Any, kernel: str, embedded: Tensor, tokens: Tokens) -> Tensor:
    inner.config._attn_implementation = kernel
    return library_states(inner, embedded, tokens)


def use_own_sdpa(inner: Any) -> None:
    """Replace the library's sdpa by embrew's, which is faster in training on a CPU."""
    if inner.device.type == "cpu":
        use(inner)


def _take(states: Tensor, places: Tensor) -> Tensor:
    """Return some positions of `(batch, heads, tokens, width)`."""
    index = places[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(2, index)


def fits(inner: Any, tokens: Tokens) -> bool:
    """Return whether two calls equal the pattern: no branches, and no window shorter than a row."""
    if inner.config._attn_implementation != TWO_CALLS or tokens.position_ids is not None:
        return False
    window = getattr(inner.config, "sliding_window", None)
    return window is None or tokens.input_ids.shape[1] <= window
