"""Dropout that draws the positions of zeros, instead of a random number per element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Mask:
    """Elements of a tensor that dropout sets to zero; what is left is not scaled.

    Attributes:
        positions: on a CPU, flat indices of the elements, int64, ascending; elsewhere, bool of the tensor's shape,
            false where an element is set to zero.
    """

    positions: Tensor

    @classmethod
    def draw(cls, like: Tensor, probability: float) -> Mask:
        """Draw a mask from PyTorch's random state of the tensor's device.

        Args:
            like: tensor of the shape `(…, width)`.
            probability: probability of zero, in (0, 1).
        """
        if like.device.type == "cpu":
            return cls(dropped_positions(like.numel(), probability))
        stays = torch.empty_like(like, dtype=torch.bool, memory_format=torch.contiguous_format)
        stays.bernoulli_(1 - probability)
        return cls(stays.view(-1, like.shape[-1]))

    def apply(self, values: Tensor) -> Tensor:
        """Return `(rows, width)` values with the mask's elements set to zero."""
        if self.positions.dtype == torch.int64:
            return self.apply_(room(values, *values.shape).copy_(values))
        return values * self.positions

    def apply_(self, values: Tensor) -> Tensor:
        """Do the same in place, for contiguous values."""
        if self.positions.dtype == torch.int64:
            values.view(-1).index_fill_(0, self.positions, 0.0)
            return values
        return values.mul_(self.positions)


ROOM = 128  # elements


def room(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return memory for a tensor that is soon freed, a little more than it needs.

    To align a tensor, the C library (glibc before 2.38) looks for more than its size, so that it finds no use for a gap
    that a tensor of the same size has left; in training, such gaps between tensors that are kept add up to gigabytes.
    """
    count = math.prod(shape)
    return like.new_empty(count + ROOM, dtype=dtype or like.dtype)[:count].view(shape)


def dropped_positions(count: int, probability: float) -> Tensor:
    """Return the positions, ascending, of those of `count` elements that dropout sets to zero.

    Each element is drawn independently. One number of PyTorch's CPU generator seeds the draw, so that a restored random
    state gives the same positions.
    """
    generator = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    scale = -1.0 / math.log1p(-probability)
    expected = count * probability
    size = int(expected + 6 * math.sqrt(expected)) + 16
    parts: list[np.ndarray] = []
    last = -1
    while last < count:
        gaps = generator.standard_exponential(size)
        gaps *= scale
        positions = np.cumsum(gaps.astype(np.int64) + 1) + last
        parts.append(positions)
        last = int(positions[-1])
    positions = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return torch.from_numpy(positions[: np.searchsorted(positions, count)])


def drop_out(values: Tensor, probability: float) -> Tensor:
    """Return values on a CPU with dropout: zero with a probability, else divided by the probability to stay."""
    dropped: Tensor = _DropOut.apply(values, probability)
    return dropped


class _DropOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, probability: float) -> Tensor:
        positions = dropped_positions(values.numel(), probability)
        ctx.save_for_backward(positions)
        ctx.stays = 1 - probability
        return (values / ctx.stays).view(-1).index_fill_(0, positions, 0.0).view(values.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (positions,) = ctx.saved_tensors
        grad = grads[0] / ctx.stays
        return grad.contiguous().view(-1).index_fill_(0, positions, 0.0).view(grad.shape), None
