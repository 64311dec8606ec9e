"""Rows of a batch one after another, without padding: what layers read on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from embrew.model.batching import Cost, plan
from embrew.model.lora_linear import common_size
from embrew.text.tokens import Tokens

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
