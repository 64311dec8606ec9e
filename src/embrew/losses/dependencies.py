"""What ESE's shallow vectors learn to hold: the principal part of how an embedding's dimensions depend on each other.

None of this is differentiated: targets are constants. Signs of singular vectors are arbitrary, and a target whose signs
change from step to step cannot be learnt, so the largest entry of every column is made positive. Random numbers come
from a generator of its own: the same input gives the same target, on every process and at every time.
"""

from __future__ import annotations

import logging
import math
from functools import cache
from typing import Literal

import torch
from torch import Tensor

logger = logging.getLogger(__name__)
Compression = Literal["dependencies", "direct", "max_k"]
SVD = Literal["auto", "exact"]
OVERSAMPLING = 32
FLAT = 1e-5  # share of the squared norm outside the range found, above which only an exact solver gives the target
RANKS = ((1.0, 10), (10.0, 26), (50.0, 72))  # (c, terms): enough for float64 where c bounds the kernel's argument


def dependency(vectors: Tensor) -> Tensor:
    """A = softmax over rows of XᵀX / √d, *ESE: Espresso Sentence Embeddings* (arXiv 2402.14776), Eq. 3, over a batch.

    Args:
        vectors: X `(..., texts, d)`.

    Returns:
        `(..., d, d)`; not symmetric.
    """
    return torch.softmax(vectors.mT @ vectors / math.sqrt(vectors.shape[-1]), dim=-1)


@torch.no_grad()
def compression_target(
    vectors: Tensor,
    k: int,
    *,
    compression: Compression = "dependencies",
    per_text: bool = False,
    svd: SVD = "auto",
    source: Tensor | None = None,
) -> Tensor:
    """What the first k dimensions are drawn towards: `(..., texts, k)`, float32 (float64 for float64), a constant.

    Args:
        vectors: X `(..., texts, d)`, layers in front.
        k: dimensions kept.
        compression: `dependencies`: X·U_kΣ_k, with A ≈ UΣVᵀ the dependency matrix (the paper's Eqs. 3–5); `direct`:
            U_kΣ_k of the centred X itself; `max_k`: X times the k largest entries of every row of A.
        per_text: a dependency matrix for every text, as Eq. 3 is printed, in place of one for the batch.
        svd: `auto`: a randomised range finder, and the exact solver where the spectrum is too flat for it; `exact`.
        source: texts that A (or the direct compression) is taken from, `(..., texts, d)`; X itself without it.

    Raises:
        ValueError: k is not between 1 and d; or there is no per-text form.
    """
    width = vectors.shape[-1]
    if not 1 <= k <= width:
        raise ValueError(f"k={k} of {width} dimensions; give 1 to {width}")
    if per_text and compression != "dependencies":
        raise ValueError(f"a dependency matrix for every text goes with compression=dependencies, not {compression}")
    precision = torch.float64 if vectors.dtype == torch.float64 else torch.float32
    with torch.autocast(vectors.device.type, enabled=False):
        x = vectors.detach().to(precision)
        seen = x if source is None else source.detach().to(precision)
        if per_text:
            return per_text_target(x, k)
        if compression == "direct":
            return _direct(x, seen, k)
        matrix = dependency(seen)
        if compression == "max_k":
            return x @ matrix.topk(k, dim=-1).values
        return x @ principal_dependencies(seen, k, svd=svd)


def principal_dependencies(vectors: Tensor, k: int, *, svd: SVD = "auto") -> Tensor:
    """U_kΣ_k of the dependency matrices of X `(..., texts, d)`: `(..., d, k)`, every column's largest entry positive.

    With `auto`, all matrices go through one seeded range finder with a power step; where more than 10⁻⁵ of a matrix'
    squared norm lies outside the range, its spectrum is flat, randomised methods give another target, and it is solved
    exactly. Exact is in float64, from the matrix on: neighbours in a flat spectrum are closer than float32 tells apart.
    """
    if svd == "exact":
        return _exact(vectors, k)
    columns = max(k + OVERSAMPLING, min(vectors.shape[-2] + OVERSAMPLING, 2 * k))
    if columns >= vectors.shape[-1]:
        return _exact(vectors, k)
    found, outside = _range_finder(dependency(vectors), k, columns)
    flat = outside > FLAT
    if flat.any():
        _say_flat(vectors.shape[-1])
        found = found.clone()
        found[flat] = _exact(vectors[flat], k)
    return found


@cache
def _say_flat(width: int) -> None:
    """Once a width."""
    logger.info(
        "dependency matrices of %d dimensions with a flat spectrum are solved exactly, which takes longer", width
    )


def _exact(vectors: Tensor, k: int) -> Tensor:
    u, s, _ = torch.linalg.svd(dependency(vectors.double()))
    return with_signs(u[..., :k] * s[..., None, :k]).to(vectors.dtype)


def _range_finder(matrix: Tensor, k: int, columns: int) -> tuple[Tensor, Tensor]:
    """U_kΣ_k, and the share of every matrix' squared norm that is outside the range found."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(matrix.shape[-1], columns, generator=generator, dtype=matrix.dtype)
    basis, _ = torch.linalg.qr(matrix @ drawn.to(matrix.device))
    basis, _ = torch.linalg.qr(matrix @ (matrix.mT @ basis))
    small = torch.linalg.qr(matrix.mT @ basis).R  # A ≈ basis · smallᵀ · Qᵀ
    u, s, _ = torch.linalg.svd(small.mT)
    inside = torch.linalg.vector_norm(s.double(), dim=-1) / torch.linalg.vector_norm(matrix, dim=(-2, -1)).double()
    outside = (1.0 - inside.square()).clamp(min=0.0)
    return with_signs((basis @ u[..., :k]) * s[..., None, :k]), outside


def with_signs(columns: Tensor) -> Tensor:
    """Columns `(..., d, k)` whose largest entry is positive."""
    largest = columns.gather(-2, columns.abs().argmax(-2, keepdim=True))
    return columns * torch.where(largest < 0, -1.0, 1.0).to(columns.dtype)


def _direct(x: Tensor, seen: Tensor, k: int) -> Tensor:
    """Principal components of the centred texts, zeros where there are fewer than k."""
    mean = seen.mean(-2, keepdim=True)
    _, _, v = torch.linalg.svd(seen - mean, full_matrices=False)
    target = (x - mean) @ with_signs(v.mT[..., :k])
    return torch.nn.functional.pad(target, (0, k - target.shape[-1]))


def per_text_target(vectors: Tensor, k: int) -> Tensor:
    """xᵀ U_kΣ_k with A = softmax of x xᵀ / √d for every text: `(..., texts, k)`.

    exp(x_i x_j / √d) is a smooth function of two numbers, so A has a rank of about ten. It is expanded in Chebyshev
    polynomials of x_j and never formed: the cost is O(d r²) a text, and components beyond the rank r, which would be
    rounding noise, are zero. Where single entries are so large that more than 72 terms were needed, A is formed.
    """
    shape, width = vectors.shape[:-1], vectors.shape[-1]
    x = vectors.reshape(-1, width).double()
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    spread = ((high - low) * x.abs().amax(-1, keepdim=True) / (2 * math.sqrt(width)))[:, 0]
    target = torch.zeros(len(x), k, dtype=x.dtype, device=x.device)
    done = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for bound, terms in RANKS:
        rows = ~done & (spread <= bound)
        done |= rows
        if rows.any():
            kept = min(k, terms)
            target[rows, :kept] = _expanded(x[rows], low[rows], high[rows], terms)[:, :kept]
    for i in (~done).nonzero()[:, 0].tolist():
        target[i] = x[i] @ _exact(x[i : i + 1], k)  # the matrix of a batch of one
    return target.view(*shape, k).to(vectors.dtype)


def _expanded(x: Tensor, low: Tensor, high: Tensor, terms: int) -> Tensor:
    """`(texts, terms)` components, from A = K Pᵀ with P the Chebyshev polynomials at x and K their coefficients."""
    scale = 1.0 / math.sqrt(x.shape[-1])
    angles = (torch.arange(terms, dtype=x.dtype, device=x.device) + 0.5) * (math.pi / terms)
    middle, half = (high + low) / 2, ((high - low) / 2).clamp(min=torch.finfo(x.dtype).tiny)
    nodes = middle + half * angles.cos()
    orders = torch.arange(terms, dtype=x.dtype, device=x.device)
    transform = (angles[:, None] * orders).cos() * (2.0 / terms)
    transform[:, 0] /= 2
    largest = scale * torch.maximum(x * high, x * low)
    values = (scale * x[:, :, None] * nodes[:, None, :] - largest[..., None]).exp()
    polynomials = (((x - middle) / half).clamp(-1, 1).acos()[..., None] * orders).cos()
    coefficients = values @ transform
    coefficients = coefficients / (coefficients @ polynomials.sum(1)[..., None])
    q, r = torch.linalg.qr(coefficients)
    _, other = torch.linalg.qr(polynomials)
    u, s, _ = torch.linalg.svd(r @ other.mT)
    return (x[:, None, :] @ with_signs((q @ u) * s[:, None, :]))[:, 0]
