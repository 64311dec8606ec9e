"""A loss whose gradient is computed before the backward pass of the trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class PrecomputedGradient(torch.autograd.Function):
    """A loss value L with a given gradient dL/dstates.

    A decoder can then run forward and backward under its own conditions (adapter off) on detached states, while the
    trainer calls `backward` on the result as on any loss.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, grad: Tensor, value: Tensor) -> Tensor:
        """Return the value, keep the gradient."""
        ctx.save_for_backward(grad)
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Scale the kept gradient."""
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None
