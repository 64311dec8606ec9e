"""Losses and gradients of one chunk of rows under a language-model head, in PyTorch's own operations."""

from __future__ import annotations

import torch
from torch import Tensor


def chunk_nll(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, logits: Tensor, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Return the loss of every row of a chunk `(rows,)`, and its gradient for the logits `(rows, vocabulary)`.

    All results overwrite `logits`, so that no chunk allocates memory.
    """
    q, slope = _shifted_logits(hidden, weight, bias, logits[: len(hidden)], softcap)
    at = labels[:, None]
    loss = -q.gather(1, at)
    z_q = q.exp_().sum(-1, keepdim=True)
    wanted = q.div_(z_q).scatter_add_(1, at, torch.full_like(at, -1, dtype=q.dtype))
    return (loss + z_q.log())[:, 0], wanted if slope is None else wanted.mul_(slope)


def chunk_kl(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    teacher: Tensor,
    logits: Tensor,
    spare: Tensor,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Return as `chunk_nll`, with both sides in one product, whose time for few rows is that of reading the head.

    With x the logits less the largest of their row and Z the sum of e^x, KL = Σ e^x_p (x_p − x_q) / Z_p − log Z_p +
    log Z_q: every exponential is computed once.
    """
    rows = len(hidden)
    both, slope = _shifted_logits(torch.cat([teacher, hidden]), weight, bias, logits[: 2 * rows], softcap)
    p, q = both.split(rows)
    ratio = torch.sub(p, q, out=spare[:rows])
    z_p, z_q = p.exp_().sum(-1, keepdim=True), q.exp_().sum(-1, keepdim=True)
    ratio.masked_fill_(p == 0, 0.0)  # 0 · log 0 = 0
    p.div_(z_p)
    loss = ratio.mul_(p).sum(-1, keepdim=True) - z_p.log() + z_q.log()
    wanted = q.div_(z_q).sub_(p)
    return loss[:, 0], wanted if slope is None else wanted.mul_(slope[rows:])


def project(hidden: Tensor, weight: Tensor, out: Tensor) -> None:
    """Write the head's products with hidden states to `out`, `(rows, vocabulary)`."""
    if weight.dtype == out.dtype:
        torch.mm(hidden.to(weight.dtype), weight.T, out=out)
    else:
        out.copy_(hidden.to(weight.dtype) @ weight.T)


def _shifted_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, softcap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Write logits minus their row's maximum to `out`, `(rows, vocabulary)`; return them and the soft cap's slope."""
    project(hidden, weight, out)
    if bias is not None:
        out += bias.to(out.dtype)
    slope = None
    if softcap is not None:
        out.div_(softcap).tanh_()
        slope = 1 - out**2
        out.mul_(softcap)
    return out.sub_(out.amax(-1, keepdim=True)), slope
