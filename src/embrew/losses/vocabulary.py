"""Losses over a vocabulary that never hold the logits of all rows: see `chunked_head`."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from embrew.float32 import full_float32
from embrew.losses.chunked_head import chunked_losses, loss_precision


def token_kl(
    teacher: Tensor,
    student: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    *,
    row_weights: Tensor | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Forward KL of next-token distributions under one head, over the full vocabulary.

    loss = Σ_r w_r Σ_v P_r(v) [log P_r(v) − log Q_r(v)], with P = softmax(head(teacher)), Q = softmax(head(student)).
    This is the distillation term of continuation with distillation in "Learning to Compress: Unlocking the Potential
    of Large Language Models for Text Representation" (arXiv 2511.17129, Eq. 5 read over the whole vocabulary; taken
    literally, at the true token only, its gradient is that of the plain NLL).

    Args:
        teacher: `(rows, hidden)` hidden states; no gradient.
        student: `(rows, hidden)` hidden states.
        weight: `(vocabulary, hidden)` of the head; if it is trained, its gradient is that of Q, with P constant.
        bias: `(vocabulary,)` or None.
        scale: factor of the logits (Granite, Cohere).
        softcap: c in logits = c tanh(logits / c) (Gemma 2), or None.
        row_weights: `(rows,)` w; the mean by default.
        chunk_size: rows per projection, the teacher's and the student's together; by default 256 MB of logits on an
            accelerator, 64 rows of each on a CPU.

    Returns:
        A scalar, float32 (float64 for float64 input). Differentiable once, in `student`, `weight` and `bias`.

    Raises:
        ValueError: the shapes differ.
    """
    if teacher.shape != student.shape:
        raise ValueError(f"teacher {tuple(teacher.shape)} and student {tuple(student.shape)} must have the same rows")
    losses = chunked_losses(student, weight, bias, teacher.detach(), scale, softcap, chunk_size)
    return _weighted(losses, row_weights)


def token_nll(
    hidden: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    *,
    row_weights: Tensor | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Negative log-likelihood of the next token: Σ_r −w_r log softmax(head(h_r))[y_r].

    Args:
        hidden: `(rows, hidden)` hidden states.
        labels: `(rows,)` int64, each below the size of the vocabulary.
        weight: `(vocabulary, hidden)` of the head.
        bias: `(vocabulary,)` or None.
        scale: as in `token_kl`, likewise `softcap`.
        softcap: or None.
        row_weights: `(rows,)` w; the mean by default.
        chunk_size: as in `token_kl`.

    Returns:
        A scalar, float32 (float64 for float64 input). Differentiable once, in `hidden`, `weight` and `bias`.

    Raises:
        ValueError: the numbers of rows and labels differ, or a label is outside the vocabulary (on a CPU; a GPU, where
            reading labels would wait for it, raises its own error).
    """
    losses = -token_log_probs(hidden, labels, weight, bias, scale, softcap, chunk_size=chunk_size)
    return _weighted(losses, row_weights)


def token_log_probs(
    hidden: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    *,
    chunk_size: int | None = None,
) -> Tensor:
    """Return log softmax(head(h_r))[y_r] of every row: `(rows,)` float32, not rounded to the states' precision.

    Arguments and errors as in `token_nll`.
    """
    if len(labels) != len(hidden):
        raise ValueError(f"{len(labels)} labels for {len(hidden)} rows of hidden states; give one per row")
    if labels.device.type == "cpu" and len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(weight)):
        raise ValueError(f"labels from {int(labels.min())} to {int(labels.max())}; the vocabulary has {len(weight)}")
    return -chunked_losses(hidden, weight, bias, labels, scale, softcap, chunk_size)


def token_divergences(
    one: Tensor,
    other: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    *,
    kind: Literal["kl", "js"] = "kl",
    chunk_size: int = 64,
) -> Tensor:
    """KL(P_r ‖ Q_r), or Jensen–Shannon, of next-token distributions under one head: `(rows,)` float32.

    Differentiable in both sides, unlike `token_kl`, and in the head; the backward pass computes the logits again.

    Args:
        one: `(rows, hidden)` states of P.
        other: `(rows, hidden)` states of Q.
        weight: `(vocabulary, hidden)` of the head.
        bias: `(vocabulary,)` or None.
        scale: as in `token_kl`, likewise `softcap`.
        softcap: or None.
        kind: KL or Jensen–Shannon.
        chunk_size: rows per projection.

    Raises:
        ValueError: the shapes differ.
    """
    if one.shape != other.shape:
        raise ValueError(f"states {tuple(one.shape)} and {tuple(other.shape)} must have the same rows")
    parts = [
        checkpoint(_divergences, p, q, weight, bias, scale, softcap, kind, use_reentrant=False)
        for p, q in zip(one.split(chunk_size), other.split(chunk_size), strict=True)
    ]
    return torch.cat(parts) if parts else one.new_zeros(0, dtype=torch.float32)


def _divergences(
    one: Tensor,
    other: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float,
    softcap: float | None,
    kind: str,
) -> Tensor:
    with full_float32(one.device.type):
        p, q = (head_logits(h, weight, bias, scale, softcap).log_softmax(-1) for h in (one, other))
        if kind == "kl":
            return (p.exp() * (p - q)).sum(-1)
        middle = torch.logaddexp(p, q) - math.log(2.0)
        return ((p.exp() * (p - middle)).sum(-1) + (q.exp() * (q - middle)).sum(-1)) / 2


def head_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None = None, scale: float = 1.0, softcap: float | None = None
) -> Tensor:
    """Return logits `(rows, vocabulary)` of a head in the precision of the losses, of all rows at once."""
    logits = (hidden.to(weight.dtype) @ weight.T).to(loss_precision(hidden))
    if bias is not None:
        logits = logits + bias.to(logits.dtype)
    if scale != 1.0:
        logits = logits * scale
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _weighted(losses: Tensor, row_weights: Tensor | None) -> Tensor:
    return losses.sum() / max(len(losses), 1) if row_weights is None else (losses * row_weights.to(losses.dtype)).sum()
