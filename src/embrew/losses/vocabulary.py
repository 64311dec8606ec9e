"""Losses over a vocabulary that never hold the logits of all rows.

The head is frozen, so a row's gradient is known as soon as its logits are: rows are projected chunk by chunk, the
gradient for the hidden states is formed on the spot, and the chunk is forgotten. Peak memory is three blocks of
`chunk × vocabulary`, whatever the number of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def token_kl(
    teacher: Tensor,
    student: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    row_weights: Tensor | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Forward KL of next-token distributions under one frozen head, over the full vocabulary.

    loss = Σ_r w_r Σ_v P_r(v) [log P_r(v) − log Q_r(v)], with P = softmax(head(teacher)), Q = softmax(head(student)).
    This is the distillation term of continuation with distillation in "Learning to Compress: Unlocking the Potential
    of Large Language Models for Text Representation" (arXiv 2511.17129, Eq. 5 read over the whole vocabulary; taken
    literally, at the true token only, its gradient is that of the plain NLL).

    Args:
        teacher: `(rows, hidden)` hidden states; no gradient.
        student: `(rows, hidden)` hidden states.
        weight: `(vocabulary, hidden)` of the head, frozen.
        bias: `(vocabulary,)` or None.
        row_weights: `(rows,)` w; the mean by default.
        chunk_size: rows projected at a time; by default what fits 256 MB on an accelerator, 64 on a CPU.

    Returns:
        A scalar, float32 (float64 for float64 input). Differentiable once, in `student`.

    Raises:
        ValueError: the head wants a gradient, or shapes do not agree.
    """
    if teacher.shape != student.shape:
        raise ValueError(f"teacher {tuple(teacher.shape)} and student {tuple(student.shape)} must have the same rows")
    return _apply(student, weight, bias, row_weights, teacher.detach(), chunk_size)


def token_nll(
    hidden: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    row_weights: Tensor | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Negative log-likelihood of the next token under a frozen head: Σ_r −w_r log softmax(head(h_r))[y_r].

    Args:
        hidden: `(rows, hidden)` hidden states.
        labels: `(rows,)` int64, each below the size of the vocabulary.
        weight: `(vocabulary, hidden)` of the head, frozen.
        bias: `(vocabulary,)` or None.
        row_weights: `(rows,)` w; the mean by default.
        chunk_size: as in `token_kl`.

    Returns:
        A scalar, float32 (float64 for float64 input). Differentiable once, in `hidden`.

    Raises:
        ValueError: the head wants a gradient, rows and labels differ in number, or a label is outside the vocabulary.
    """
    if len(labels) != len(hidden):
        raise ValueError(f"{len(labels)} labels for {len(hidden)} rows of hidden states; give one a row")
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(weight)):
        raise ValueError(f"labels from {int(labels.min())} to {int(labels.max())}; the vocabulary has {len(weight)}")
    return _apply(hidden, weight, bias, row_weights, labels, chunk_size)


def _apply(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    row_weights: Tensor | None,
    target: Tensor,
    chunk_size: int | None,
) -> Tensor:
    if weight.requires_grad or (bias is not None and bias.requires_grad):
        raise ValueError("the head must be frozen: its gradient is not computed here; pass weight.detach()")
    if row_weights is None:
        row_weights = torch.full(
            (len(hidden),), 1.0 / max(len(hidden), 1), dtype=_precision(hidden), device=hidden.device
        )
    if chunk_size is None:
        chunk_size = 64 if hidden.device.type == "cpu" else max(1, (256 << 20) // (12 * len(weight)))
    with torch.autocast(hidden.device.type, enabled=False):
        return _ChunkedHeadLoss.apply(hidden, weight, bias, row_weights, target, chunk_size)


class _ChunkedHeadLoss(torch.autograd.Function):
    """`target` is `(rows,)` labels or `(rows, hidden)` teacher states."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        row_weights: Tensor,
        target: Tensor,
        chunk_size: int,
    ) -> Tensor:
        precision = _precision(hidden)
        losses = torch.zeros(len(hidden), dtype=precision, device=hidden.device)
        grad = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        scale = row_weights.to(precision)
        for start in range(0, len(hidden), chunk_size):
            rows = slice(start, start + chunk_size)
            losses[rows], wanted = _chunk_loss(hidden[rows], weight, bias, target[rows], precision)
            if grad is not None:
                wanted.mul_(scale[rows, None])
                grad[rows] = wanted.to(weight.dtype) @ weight
            del wanted  # before the next chunk's logits
        ctx.save_for_backward(grad)
        return (losses * scale).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return None if grad is None else grad * grads[0].to(grad.dtype), None, None, None, None, None


def _precision(hidden: Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


def _chunk_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, precision: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Loss of every row of a chunk `(rows,)`, and its gradient for the logits `(rows, vocabulary)`."""
    log_q = _log_softmax(hidden, weight, bias, precision)
    if target.ndim == 1:
        at = target[:, None]
        loss = -log_q.gather(1, at)[:, 0]
        return loss, log_q.exp_().scatter_add_(1, at, torch.full_like(at, -1, dtype=precision))
    log_p = _log_softmax(target, weight, bias, precision)
    p = log_p.exp()
    ratio = log_p.sub_(log_q).masked_fill_(p == 0, 0.0)  # 0 · log 0 = 0
    return torch.einsum("rv,rv->r", p, ratio), log_q.exp_().sub_(p)


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, precision: torch.dtype) -> Tensor:
    logits = (hidden.to(weight.dtype) @ weight.T).to(precision)
    if bias is not None:
        logits += bias.to(precision)
    return logits.sub_(logits.logsumexp(-1, keepdim=True))
