"""Losses over a vocabulary that never hold the logits of all rows, and what is computed of such distributions.

In `token_kl` and `token_nll`, rows are projected chunk by chunk, and each chunk overwrites the previous one: peak
memory is one or two blocks of `chunk × vocabulary`, independent of the number of rows. With a frozen head, the gradient
for the hidden states is computed in the forward pass. A trained head gets its gradient in the backward pass, which
projects the chunks again. The other losses recompute their logits in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from embrew.float32 import full_float32

Head = tuple[Tensor, Tensor | None, float, float | None]
"""A language model's head: weight, bias, scale and softcap, as in `token_kl`."""
TEXTS_AT_A_TIME = 4  # texts whose logits are held; they are recomputed in the backward pass


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
    row_weights: Tensor | float | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Negative log-likelihood of the next token: Σ_r −w_r log softmax(head(h_r))[y_r].

    Args:
        hidden: `(rows, hidden)` hidden states.
        labels: `(rows,)` int64, each below the size of the vocabulary.
        weight: `(vocabulary, hidden)` of the head.
        bias: `(vocabulary,)` or None.
        scale: factor of the logits.
        softcap: c in logits = c tanh(logits / c), or None.
        row_weights: `(rows,)` w, or one w for all rows; the mean by default.
        chunk_size: rows per projection, as in `token_kl`.

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


def _weighted(losses: Tensor, row_weights: Tensor | float | None) -> Tensor:
    if row_weights is None:
        return losses.sum() / max(len(losses), 1)
    return (losses * (row_weights.to(losses.dtype) if isinstance(row_weights, Tensor) else row_weights)).sum()


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
        for rows, loss, wanted in _chunks(hidden, weight, bias, target, size, softcap):
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
    for rows, _, wanted in _chunks(hidden, weight, bias, target, ctx.size, ctx.softcap):
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
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield rows, their losses, and the gradient for the logits, which the next chunk overwrites."""
    precision, distils = loss_precision(hidden), target.ndim == 2
    logits = hidden.new_empty(size * (1 + distils), len(weight), dtype=precision)
    spare = hidden.new_empty(size * distils, len(weight), dtype=precision)
    for start in range(0, len(hidden), size):
        rows = slice(start, start + size)
        if distils:
            yield rows, *_chunk_kl(hidden[rows], weight, bias, target[rows], logits, spare, softcap)
        else:
            yield rows, *_chunk_nll(hidden[rows], weight, bias, target[rows], logits, softcap)


def _chunk_nll(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, logits: Tensor, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Return the loss of every row of a chunk `(rows,)`, and its gradient for the logits `(rows, vocabulary)`.

    All results overwrite `logits`, so that no chunk allocates memory.
    """
    q, slope = _shifted_logits(hidden, weight, bias, logits[: len(hidden)], softcap)
    columns = labels[:, None]
    loss = -q.gather(1, columns)
    z_q = q.exp_().sum(-1, keepdim=True)
    wanted = q.div_(z_q).scatter_add_(1, columns, torch.full_like(columns, -1, dtype=q.dtype))
    return (loss + z_q.log())[:, 0], wanted if slope is None else wanted.mul_(slope)


def _chunk_kl(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    teacher: Tensor,
    logits: Tensor,
    spare: Tensor,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Return as `_chunk_nll`, with both sides in one product, whose time for few rows is that of reading the head.

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


def _shifted_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, softcap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Write logits minus their row's maximum to `out`, `(rows, vocabulary)`; return them and the soft cap's slope."""
    if weight.dtype == out.dtype:
        torch.mm(hidden.to(weight.dtype), weight.T, out=out)
    else:
        out.copy_(hidden.to(weight.dtype) @ weight.T)
    if bias is not None:
        out += bias.to(out.dtype)
    slope = None
    if softcap is not None:
        out.div_(softcap).tanh_()
        slope = 1 - out**2
        out.mul_(softcap)
    return out.sub_(out.amax(-1, keepdim=True)), slope


def bag_of_words_nll(
    hidden: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    *,
    row_weights: Tensor | None = None,
) -> Tensor:
    """Σ_r −w_r mean_{t ∈ T_r} log softmax(max_j head(h_rj))_t, over the slots j of a text.

    The embedding-based objectives of "Making Large Language Models A Better Foundation For Dense Retrieval" (arXiv
    2312.15503), Eqs. 2–4, in the authors' form: the largest logit of the slots, mean over the set of target tokens.

    Args:
        hidden: `(texts, slots, hidden)` states.
        targets: `(texts, tokens)` int64, the distinct tokens of each target, padded with −1. A text without any does
            not contribute.
        weight: `(vocabulary, hidden)` of the head, differentiable as `hidden` is.
        bias: `(vocabulary,)` or None.
        scale: factor of the logits.
        softcap: c in logits = c tanh(logits / c), or None.
        row_weights: `(texts,)` w; by default the mean over texts that have targets.

    Returns:
        A scalar, float32.

    Raises:
        ValueError: a target is outside the vocabulary (on a CPU; a GPU raises its own error), or the numbers of texts
            differ.
    """
    if len(targets) != len(hidden):
        raise ValueError(f"targets of {len(targets)} texts for states of {len(hidden)}; give one row per text")
    if targets.device.type == "cpu" and targets.numel() and int(targets.max()) >= len(weight):
        raise ValueError(f"target {int(targets.max())}; the vocabulary has {len(weight)}")
    if row_weights is None:
        has_targets = (targets >= 0).any(1)
        row_weights = has_targets.float() / has_targets.sum().clamp(min=1)
    head: Head = weight, bias, scale, softcap
    total = torch.zeros((), device=hidden.device)
    for start in range(0, len(hidden), TEXTS_AT_A_TIME):
        rows = slice(start, start + TEXTS_AT_A_TIME)
        losses: Tensor = checkpoint(_bag_losses, hidden[rows], targets[rows], head, use_reentrant=False)
        total = total + (losses * row_weights[rows]).sum()
    return total


def _bag_losses(hidden: Tensor, targets: Tensor, head: Head) -> Tensor:
    """Return losses `(texts,)`, each the mean over the targets of a text."""
    with full_float32(hidden.device.type):
        logits = head_logits(hidden, *head).float()
        log_p = logits.amax(1).log_softmax(-1)
        is_target = (targets >= 0).float()
        log_probs = log_p.gather(1, targets.clamp(min=0)) * is_target
        return -log_probs.sum(1) / is_target.sum(1).clamp(min=1)


def conditional_alignment_loss(
    near: Tensor, far: Tensor, pair_indices: Tensor, *, temperature: float = 0.1, logarithm: bool = False
) -> Tensor:
    """mean_i −log [ e^{S1_i/τ} / (e^{S1_i/τ} + Σ_{j of i} e^{S2_j/τ}) ], S1 = −σ(near), S2 = −σ(far).

    *Following the Autoregressive Nature of LLM Embeddings via Compression and Alignment*, Eq. 2.

    Args:
        near: `(pairs,)` to be minimised: β |a − b|, or a divergence.
        far: `(negatives,)` to be maximised: β times the margin over a negative, or a divergence.
        pair_indices: `(negatives,)` int64: the pair that a negative belongs to.
        temperature: τ.
        logarithm: −log σ in place of −σ.

    Returns:
        A scalar, float32.

    Raises:
        ValueError: the numbers of pair indices and negatives differ.
    """
    if len(pair_indices) != len(far):
        raise ValueError(f"{len(pair_indices)} pair indices for {len(far)} negatives; give one each")
    near, far = near.float(), far.float()
    s1, s2 = (-functional.logsigmoid(x) if logarithm else -torch.sigmoid(x) for x in (near, far))
    # Σ_j e^{(S2_j − S1)/τ} of each pair, without overflow in float32
    differences = (s2 - s1[pair_indices]) / temperature
    largest = torch.zeros_like(near).scatter_reduce(0, pair_indices, differences.detach(), "amax", include_self=True)
    total = (-largest).exp().index_add(0, pair_indices, (differences - largest[pair_indices]).exp())
    losses = largest + total.log()
    return losses.mean() if len(losses) else losses.sum()


def token_divergences(
    p_hidden: Tensor,
    q_hidden: Tensor,
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
        p_hidden: `(rows, hidden)` states of P.
        q_hidden: `(rows, hidden)` states of Q.
        weight: `(vocabulary, hidden)` of the head.
        bias: `(vocabulary,)` or None.
        scale: factor of the logits.
        softcap: c in logits = c tanh(logits / c), or None.
        kind: KL or Jensen–Shannon.
        chunk_size: rows per projection.

    Raises:
        ValueError: the shapes differ.
    """
    if p_hidden.shape != q_hidden.shape:
        raise ValueError(f"states {tuple(p_hidden.shape)} and {tuple(q_hidden.shape)} must have the same rows")
    head: Head = weight, bias, scale, softcap
    parts = [
        checkpoint(_divergences, kind, p, q, head, use_reentrant=False)
        for p, q in zip(p_hidden.split(chunk_size), q_hidden.split(chunk_size), strict=True)
    ]
    return torch.cat(parts) if parts else p_hidden.new_zeros(0, dtype=torch.float32)


def _divergences(kind: Literal["kl", "js"], p_hidden: Tensor, q_hidden: Tensor, head: Head) -> Tensor:
    with full_float32(p_hidden.device.type):
        p, q = (head_logits(states, *head).log_softmax(-1) for states in (p_hidden, q_hidden))
        if kind == "kl":
            return (p.exp() * (p - q)).sum(-1)
        middle = torch.logaddexp(p, q) - math.log(2.0)
        return ((p.exp() * (p - middle)).sum(-1) + (q.exp() * (q - middle)).sum(-1)) / 2
