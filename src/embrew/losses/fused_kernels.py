"""Losses and gradients of blocks of logits in one Triton kernel each, for GPUs; `eager_chunk` is their reference.

A row of logits is read once for its loss, with a running maximum and running sums, and once more for its gradient,
which overwrites the logits. The eager chunk reads or writes blocks about 20 times.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits per turn of a row's loop


def kl_and_gradient(teacher: Tensor, student: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    """Return KL of each row `(rows,)` float32; the gradient for the student's logits overwrites them.

    Args:
        teacher: `(rows, vocabulary)` logits of P, before bias and soft cap.
        student: those of Q; contiguous rows, float32, bfloat16 or float16.
        bias: `(vocabulary,)` of the head.
        softcap: c in c tanh(logits / c).
    """
    loss = torch.empty(len(student), dtype=torch.float32, device=student.device)
    if len(student):
        _kl[(len(student),)](teacher, student, loss, *_shared(student, bias, softcap))
    return loss


def nll_and_gradient(logits: Tensor, labels: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    """Return −log softmax(logits)[label] of each row `(rows,)` float32; the gradient overwrites the logits."""
    loss = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        _nll[(len(logits),)](logits, labels, loss, *_shared(logits, bias, softcap))
    return loss


def _shared(logits: Tensor, bias: Tensor | None, softcap: float | None) -> tuple[Any, ...]:
    """Return what both kernels take: bias, columns, distance of rows, soft cap, and what is compiled in."""
    capped = softcap is not None
    return (
        logits if bias is None else bias,
        logits.shape[1],
        logits.stride(0),
        softcap or 1.0,
        bias is not None,
        capped,
        BLOCK,
    )


@triton.jit
def _tanh(x: Any) -> Any:
    """Tanh to float32's precision: a polynomial near 0 (Cephes' `tanhf`), else by the exponential."""
    size = tl.abs(x)
    z = x * x
    near = (
        ((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1
    ) * z - 3.33332819422e-1
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 0.625, near * z * x + x, tl.where(x < 0, -far, far))


@triton.jit
def _read(at: Any, bias: Any, columns: Any, there: Any, cap: Any, HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr) -> Any:
    """Return a block of logits in float32, −∞ beyond the vocabulary, and the soft cap's slope."""
    x = tl.load(at + columns, mask=there, other=-float("inf")).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + columns, mask=there, other=0.0).to(tl.float32)
    slope = tl.full(x.shape, 1.0, tl.float32)
    if CAPPED:
        bent = _tanh(x / cap)
        slope = 1.0 - bent * bent
        x = tl.where(there, cap * bent, -float("inf"))
    return x, slope


@triton.jit
def _kl(
    teacher: Any, student: Any, loss: Any, bias: Any, width: Any, stride: Any, cap: Any,
    HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr, SIZE: tl.constexpr,
) -> None:  # fmt: skip
    """One row: KL = S / Z_p − log Z_p + log Z_q, S = Σ e^(p − m_p) ((p − m_p) − (q − m_q)), m the maxima so far."""
    row = tl.program_id(0).to(tl.int64)
    p_at, q_at = teacher + row * stride, student + row * stride
    m_p, m_q = -1e30, -1e30  # finite, so that differences are
    z_p, z_q, s = 0.0, 0.0, 0.0
    for start in range(0, width, SIZE):
        columns = start + tl.arange(0, SIZE)
        there = columns < width
        p, _ = _read(p_at, bias, columns, there, cap, HAS_BIAS, CAPPED)
        q, _ = _read(q_at, bias, columns, there, cap, HAS_BIAS, CAPPED)
        top_p, top_q = tl.maximum(m_p, tl.max(p, 0)), tl.maximum(m_q, tl.max(q, 0))
        kept = tl.exp(m_p - top_p)
        moved = (m_p - top_p) - (m_q - top_q)
        weight = tl.exp(p - top_p)
        terms = tl.where(weight == 0, 0.0, weight * ((p - top_p) - (q - top_q)))  # 0 · log 0 = 0
        s = tl.where(kept == 0, 0.0, kept * (s + tl.where(z_p == 0, 0.0, moved * z_p))) + tl.sum(terms, 0)
        z_p = z_p * kept + tl.sum(weight, 0)
        z_q = z_q * tl.exp(m_q - top_q) + tl.sum(tl.exp(q - top_q), 0)
        m_p, m_q = top_p, top_q
    tl.store(loss + row, s / z_p - tl.log(z_p) + tl.log(z_q))
    for start in range(0, width, SIZE):
        columns = start + tl.arange(0, SIZE)
        there = columns < width
        p, _ = _read(p_at, bias, columns, there, cap, HAS_BIAS, CAPPED)
        q, slope = _read(q_at, bias, columns, there, cap, HAS_BIAS, CAPPED)
        wanted = (tl.exp(q - m_q) / z_q - tl.exp(p - m_p) / z_p) * slope
        tl.store(q_at + columns, wanted.to(student.dtype.element_ty), mask=there)


@triton.jit
def _nll(
    logits: Any, labels: Any, loss: Any, bias: Any, width: Any, stride: Any, cap: Any,
    HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr, SIZE: tl.constexpr,
) -> None:  # fmt: skip
    """One row: log Z − (x_label − m)."""
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * stride
    label = tl.load(labels + row)
    m, z, own = -1e30, 0.0, -float("inf")
    for start in range(0, width, SIZE):
        columns = start + tl.arange(0, SIZE)
        there = columns < width
        x, _ = _read(at, bias, columns, there, cap, HAS_BIAS, CAPPED)
        top = tl.maximum(m, tl.max(x, 0))
        z = z * tl.exp(m - top) + tl.sum(tl.exp(x - top), 0)
        m = top
        own = tl.maximum(own, tl.max(tl.where(columns == label, x, -float("inf")), 0))
    tl.store(loss + row, tl.log(z) - (own - m))
    for start in range(0, width, SIZE):
        columns = start + tl.arange(0, SIZE)
        there = columns < width
        x, slope = _read(at, bias, columns, there, cap, HAS_BIAS, CAPPED)
        wanted = (tl.exp(x - m) / z - tl.where(columns == label, 1.0, 0.0)) * slope
        tl.store(at + columns, wanted.to(logits.dtype.element_ty), mask=there)
