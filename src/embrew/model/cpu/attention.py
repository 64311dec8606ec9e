"""Attention on a CPU: in float32, with dropout that costs little; batches as one row without padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from embrew.model.batching import Cost, plan_batches
from embrew.model.cpu.dropout import drop_out
from embrew.model.cpu.lora_linear import common_size
from embrew.text.tokens import Tokens

ATTENTION_CALL = Cost(64.0)  # one attention call over rows of similar length, in units of a padded position


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
        dropout: dropout on attention weights.
        scaling: factor of the products; 1 / sqrt(width) by default.
        **kwargs: further arguments that the library passes.
    """
    rounds = torch.is_autocast_enabled("cpu") or value.dtype.itemsize < 4
    if query.device.type != "cpu" or not (dropout or rounds):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    dtype = value.dtype
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.to(torch.promote_types(attention_mask.dtype, torch.float32))
    with float32_on_cpu(query, key, value) as (query, key, value):
        if dropout and kwargs.get("position_bias") is None and kwargs.get("cache") is None:
            is_causal = kwargs.get("is_causal")
            is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            is_causal = attention_mask is None and query.shape[2] > 1 and bool(is_causal)  # the library's choice
            output = _with_dropout(query, key, value, attention_mask, dropout, scaling, is_causal=is_causal)
        else:
            output, _ = sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
            )
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
        packed_from_batch: `(count,)` index in the flattened batch of each packed position.
        batch_from_packed: `(batch × tokens,)` packed index of each position of the flattened batch.
        groups: groups of rows for attention.
        groups_from_packed: `(rows × width of all groups,)` packed index of each position of the flattened groups.
        packed_from_groups: `(count,)` index in the flattened groups of each packed position.
        is_causal: whether attention is causal.
    """

    positions: Tensor
    real: int
    packed_from_batch: Tensor
    batch_from_packed: Tensor
    groups: Sequence[Group]
    groups_from_packed: Tensor
    packed_from_groups: Tensor
    is_causal: bool

    @classmethod
    def from_tokens(cls, tokens: Tokens, *, is_causal: bool) -> Packed:
        """Return the positions of a batch on the CPU."""
        is_real = tokens.attention_mask.numpy().astype(bool)
        lengths = is_real.sum(1)
        total = int(lengths.sum())
        count = common_size(total + 1)
        batch_from_packed = np.full(is_real.shape, count - 1)
        batch_from_packed[is_real] = np.arange(total)
        packed_from_batch, positions, packed_from_groups = np.zeros((3, count), dtype=np.int64)
        packed_from_batch[:total] = is_real.reshape(-1).nonzero()[0]
        positions[:total] = is_real.nonzero()[1]
        groups, groups_from_packed, offset = [], [], 0
        for rows in plan_batches(lengths.tolist(), batch_size=len(lengths), cost=ATTENTION_CALL):
            width = int(lengths[rows[0]])
            group_from_packed, in_text = batch_from_packed[rows, :width], is_real[rows, :width]
            packed_from_groups[group_from_packed[in_text]] = offset + in_text.reshape(-1).nonzero()[0]
            mask = None if is_causal or in_text.all() else torch.from_numpy(in_text)[:, None, None]
            groups.append(Group(len(rows), width, mask))
            groups_from_packed.append(group_from_packed.reshape(-1))
            offset += group_from_packed.size
        return cls(
            positions=torch.from_numpy(positions)[None],
            real=total,
            packed_from_batch=torch.from_numpy(packed_from_batch),
            batch_from_packed=torch.from_numpy(batch_from_packed.reshape(-1)),
            groups=groups,
            groups_from_packed=torch.from_numpy(np.concatenate(groups_from_packed)),
            packed_from_groups=torch.from_numpy(packed_from_groups),
            is_causal=is_causal,
        )

    def pack(self, states: Tensor) -> Tensor:
        """Return `(1, count, width)` of `(batch, tokens, width)`."""
        packed: Tensor = _Gather.apply(states.flatten(0, 1), self.packed_from_batch, self.batch_from_packed, None)
        return packed[None]

    def unpack(self, states: Tensor, tokens: Tokens) -> Tensor:
        """Return `(batch, tokens, width)` of `(1, count, width)`; padding has arbitrary states."""
        unpacked: Tensor = _Gather.apply(states[0], self.batch_from_packed, self.packed_from_batch, self.real)
        return unpacked.view(*tokens.input_ids.shape, -1)

    def group(self, states: Tensor) -> list[Tensor]:
        """Return `(rows, width, …)` of each group, of `(count, …)`."""
        grouped: Tensor = _Gather.apply(states, self.groups_from_packed, self.packed_from_groups, self.real)
        parts = grouped.split([group.rows * group.width for group in self.groups])
        return [part.unflatten(0, group[:2]) for part, group in zip(parts, self.groups, strict=True)]

    def ungroup(self, parts: Sequence[Tensor]) -> Tensor:
        """Return `(count, …)` of the `(rows, width, …)` of each group."""
        together = torch.cat([part.flatten(0, 1) for part in parts])
        ungrouped: Tensor = _Gather.apply(together, self.packed_from_groups, self.groups_from_packed, None)
        return ungrouped


class _Gather(torch.autograd.Function):
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


def attend_each_row(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: Packed,
    *,
    dropout: float,
    scaling: float | None,
    **kwargs: Any,
) -> Tensor:
    """Return attention `(1, count, heads, width)` of packed rows, each of which reads itself.

    Args:
        module: the attention layer.
        query: `(1, heads, count, width)`.
        key: `(1, key heads, count, width)`.
        value: likewise.
        packed: the rows.
        dropout: dropout on attention weights.
        scaling: factor of the products.
        **kwargs: further arguments that the library passes.
    """
    kwargs["is_causal"] = packed.is_causal
    states = [packed.group(part[0].transpose(0, 1)) for part in (query, key, value)]
    states = [[part.transpose(1, 2) for part in parts] for parts in states]
    once = query.dtype == torch.float32 and torch.is_grad_enabled() and not dropout
    if once and not torch.is_autocast_enabled("cpu") and not any(kwargs.get(name) is not None for name in CHANGES):
        return _attend_keeping_once(packed, states[0], states[1], states[2], scaling)[None]
    outputs = []
    for group, q, k, v in zip(packed.groups, *states, strict=True):
        output, _ = sdpa(module, q, k, v, group.mask, dropout=dropout, scaling=scaling, **kwargs)
        outputs.append(output)
    return packed.ungroup(outputs)[None]


class _Kept:
    """A tensor that a graph keeps, or a way to copy it from what is kept elsewhere."""

    def __init__(self, get: Callable[[], Tensor]) -> None:
        self.get = get


def _keeping(wide: Sequence[Tensor], narrow: Sequence[Tensor], times: int, saved: list[_Kept]) -> Any:
    """Return a context whose graph keeps heads without their copies; what else it keeps is added to `saved`."""

    def keep(tensor: Tensor) -> _Kept:
        for copied, part in zip(wide, narrow, strict=True):
            if times > 1 and _is_same(tensor, copied):
                return _Kept(partial(part.repeat_interleave, times, dim=1))
        saved.append(_Kept(lambda: tensor))
        return saved[-1]

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor.get())


def _is_same(first: Tensor, second: Tensor) -> bool:
    return first.data_ptr() == second.data_ptr() and first.shape == second.shape and first.stride() == second.stride()


CHANGES = ("softcap", "position_bias", "cache")  # arguments by which the library's sdpa is more than PyTorch's


def _attend_keeping_once(
    packed: Packed, queries: Sequence[Tensor], keys: Sequence[Tensor], values: Sequence[Tensor], scaling: float | None
) -> Tensor:
    """Return attention `(count, heads, width)` of groups of rows, whose graph keeps no copies.

    Of keys and values it keeps the heads that there are, not those repeated for their queries; of outputs the packed
    ones, which the next product keeps, too. Both are copied again in the backward pass.
    """
    outputs: list[Tensor] = []
    all_outputs: list[Tensor] = []
    begin = 0
    for group, q, k, v in zip(packed.groups, queries, keys, values, strict=True):
        times = q.shape[1] // k.shape[1]
        wide_k, wide_v = [part if times == 1 else part.repeat_interleave(times, dim=1) for part in (k, v)]
        saved: list[_Kept] = []
        with _keeping((wide_k, wide_v), (k.detach(), v.detach()), times, saved):
            output = nn.functional.scaled_dot_product_attention(
                q, wide_k, wide_v, attn_mask=group.mask, is_causal=packed.is_causal and group.width > 1, scale=scaling
            )
        index = packed.groups_from_packed[begin : begin + group.rows * group.width]
        begin += len(index)
        for tensor in saved:
            if _is_same(tensor.get(), output):
                tensor.get = partial(_regrouped, all_outputs, index, group)
        outputs.append(output.transpose(1, 2))
    together = packed.ungroup(outputs)
    all_outputs.append(together.detach())  # without its graph, which would keep itself
    return together


def _regrouped(all_outputs: list[Tensor], index: Tensor, group: Group) -> Tensor:
    """Return the output of a group `(rows, heads, tokens, width)` from the packed outputs of all.

    Of padding it has others than were computed; no gradient comes from there.
    """
    return all_outputs[0].index_select(0, index).unflatten(0, group[:2]).transpose(1, 2)
