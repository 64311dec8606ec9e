"""The loss of every row under a language-model head, computed chunk by chunk.

Rows are projected chunk by chunk, and each chunk overwrites the previous one: peak memory is one or two blocks of
`chunk × vocabulary`, independent of the number of rows. With a frozen head, the gradient for the hidden states is
computed in the forward pass. A trained head gets its gradient in the backward pass, which projects the chunks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from embrew.float32 import full_float32
from embrew.losses.eager_chunk import chunk_kl, chunk_nll
from embrew.losses.fused_chunk import fused_chunk, kernels


def chunked_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scale: float,
    softcap: float | None,
    chunk_size: int | None,
) -> Tensor:
    """Return losses `(rows,)`: negative log-likelihood for labels `(rows,)`, KL for teacher states `(rows, hidden)`."""
    if scale != 1.0:  # scaling the logits is scaling states and bias
        hidden, bias = hidden * scale, None if bias is None else bias * scale
        target = target * scale if target.ndim == 2 else target
    if chunk_size is None:
        size = 64 if hidden.device.type == "cpu" else (256 << 20) // (12 * len(weight))
    else:
        size = chunk_size if target.ndim == 1 else chunk_size // 2
    with full_float32(hidden.device.type):
        return _ChunkedHeadLoss.apply(hidden, weight, bias, target, max(1, min(size, len(hidden))), softcap)


def loss_precision(hidden: Tensor) -> torch.dtype:
    """Return float32, or float64 for float64 states."""
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


class _ChunkedHeadLoss(torch.autograd.Function):
    """Losses `(rows,)`; `target` is labels `(rows,)` or teacher states `(rows, hidden)`, `size` of them at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        size: int,
        softcap: float | None,
    ) -> Tensor:
        ctx.size, ctx.softcap, ctx.trains_head = size, softcap, any(ctx.needs_input_grad[1:3])
        grad = torch.zeros_like(hidden) if ctx.needs_input_grad[0] and not ctx.trains_head else None
        losses = hidden.new_zeros(len(hidden), dtype=loss_precision(hidden))
        for rows, loss, wanted in _chunks(hidden, weight, bias, target, size, softcap, trains_head=ctx.trains_head):
            losses[rows] = loss
            if grad is not None:
                grad[rows] = wanted.to(weight.dtype) @ weight
        ctx.save_for_backward(*([hidden, weight, bias, target] if ctx.trains_head else [grad]))
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.trains_head:
            (grad,) = ctx.saved_tensors
            for_hidden = None if grad is None else grad * grads[0][:, None].to(grad.dtype)
            return for_hidden, None, None, None, None, None
        with full_float32(grads[0].device.type):
            return *_gradients(ctx, grads[0]), None, None, None


def _gradients(ctx: Any, rows_grad: Tensor) -> list[Tensor | None]:
    """Return gradients for hidden states, weight and bias, summed in the precision of the loss."""
    hidden, weight, bias, target = ctx.saved_tensors
    precision = loss_precision(hidden)
    wants: tuple[bool, bool, bool] = ctx.needs_input_grad[:3]
    for_hidden = torch.zeros_like(hidden) if wants[0] else None
    for_weight = torch.zeros_like(weight, dtype=precision) if wants[1] else None
    for_bias = torch.zeros_like(bias, dtype=precision) if wants[2] else None
    for rows, _, wanted in _chunks(hidden, weight, bias, target, ctx.size, ctx.softcap, trains_head=True):
        wanted.mul_(rows_grad[rows, None])
        if for_hidden is not None:
            for_hidden[rows] = (wanted.to(weight.dtype) @ weight).to(hidden.dtype)
        if for_weight is not None:
            for_weight.addmm_(wanted.T, hidden[rows].to(precision))
        if for_bias is not None:
            for_bias += wanted.sum(0)
    return [
        for_hidden,
        None if for_weight is None else for_weight.to(weight.dtype),
        None if for_bias is None else for_bias.to(bias.dtype),
    ]


def _chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    size: int,
    softcap: float | None,
    *,
    trains_head: bool,
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield rows, their losses, and the gradient for the logits, which the next chunk overwrites.

    Fused kernels give a frozen head's gradient in its own precision, in which it is multiplied with the head.
    """
    precision, distils = loss_precision(hidden), target.ndim == 2
    fused = kernels(hidden.device) if precision == torch.float32 else None
    dtype = weight.dtype if fused is not None and not trains_head else precision
    logits = hidden.new_empty(size * (1 + distils), len(weight), dtype=dtype)
    spare = hidden.new_empty(size * distils * (fused is None), len(weight), dtype=precision)
    for start in range(0, len(hidden), size):
        rows = slice(start, start + size)
        if fused is not None:
            yield rows, *fused_chunk(fused, hidden[rows], weight, bias, target[rows], logits, softcap)
        elif distils:
            yield rows, *chunk_kl(hidden[rows], weight, bias, target[rows], logits, spare, softcap)
        else:
            yield rows, *chunk_nll(hidden[rows], weight, bias, target[rows], logits, softcap)
