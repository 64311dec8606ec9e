"""What ESE's shallow vectors learn to hold: the principal part of how an embedding's dimensions depend on each other.

None of this is differentiated: targets are constants. Signs of singular vectors are arbitrary, and a target whose signs
change from step to step cannot be learnt, so the largest entry of every column is made positive. Random numbers come
from a generator of its own: the same input gives the same target, on every process and at every time.
"""

from __future__ import annotations

import logging
import math
from functools import cache, lru_cache
from typing import Literal

import torch
from torch import Tensor

logger = logging.getLogger(__name__)
Compression = Literal["dependencies", "direct", "max_k"]
SVD = Literal["auto", "exact"]
OVERSAMPLING = 32
ROUNDS = 1  # products with AᵀA before a subspace is looked at
WORTH = 48  # more rounds than a `WORTH`-th of the width take as long as the exact solver
TOLERANCE = 2e-4  # expected relative error of a target above which a subspace is iterated further
MISSED = 5.0  # measured errors ÷ (σ_last / σ_j)ⁿ, with `OVERSAMPLING` columns more than asked for
RANKS = ((1.0, 10), (10.0, 26), (50.0, 72))  # (c, terms): enough for float64 where c bounds the kernel's argument


def dependency(vectors: Tensor) -> Tensor:
    """A = softmax over rows of XᵀX / √d, *ESE: Espresso Sentence Embeddings* (arXiv 2402.14776), Eq. 3, over a batch.

    Args:
        vectors: X `(..., texts, d)`.

    Returns:
        `(..., d, d)`; not symmetric.
    """
    return torch.softmax((vectors.mT / math.sqrt(vectors.shape[-1])) @ vectors, dim=-1)


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
        svd: `auto`: iterated subspaces, and the exact solver where the spectrum is too flat for them; `exact`.
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
        if compression == "max_k":
            return x @ dependency(seen).topk(k, dim=-1).values
        return x @ principal_dependencies(seen, k, svd=svd)


def principal_dependencies(vectors: Tensor, k: int, *, svd: SVD = "auto") -> Tensor:
    """U_kΣ_k of the dependency matrices of X `(..., texts, d)`: `(..., d, k)`, every column's largest entry positive.

    With `auto`, a seeded subspace is iterated for one matrix after the other (so that it stays in the cache, and those
    of all layers are never held), further where the spectrum decays slowly; where it is flat, which is said once, the
    matrix is solved exactly. Exact is in float64, from the matrix on: neighbours in a flat spectrum are closer than
    float32 tells apart.
    """
    width = vectors.shape[-1]
    columns = []
    for layer in vectors.reshape(-1, *vectors.shape[-2:]):
        found = None
        if svd == "auto" and k + OVERSAMPLING < width:
            found = _iterated(layer, k)
            if found is None:
                _say_flat(width)
        columns.append(_exact(layer, k) if found is None else found)
    return with_signs(torch.stack(columns).view(*vectors.shape[:-2], width, k))


@cache
def _say_flat(width: int) -> None:
    """Once a width."""
    logger.info(
        "dependency matrices of %d dimensions with a flat spectrum are solved exactly, which takes longer", width
    )


def _exact(vectors: Tensor, k: int) -> Tensor:
    """Of one matrix, from A Aᵀ = U Σ² Uᵀ; squares of float64 still tell apart what float32 can hold."""
    matrix = dependency(vectors.double())
    squares, u = torch.linalg.eigh(matrix @ matrix.mT)
    return (u[:, -k:] * squares[-k:].clamp(min=0).sqrt()).flip(-1).to(vectors.dtype)


def _iterated(vectors: Tensor, k: int) -> Tensor | None:
    """U_kΣ_k of one matrix; None where its spectrum is so flat that an exact solver is as quick.

    Subspace iteration (Halko, Martinsson and Tropp, "Finding structure with randomness", arXiv 0909.4061, Algorithm
    4.4) towards the right singular vectors. After n products with A or Aᵀ, what column j still lacks is proportional to
    (σ_last / σ_j)ⁿ, so that the spectrum first found tells how many more are needed.
    """
    matrix = dependency(vectors)
    basis = torch.linalg.qr(matrix.mT @ _drawn(len(matrix), k + OVERSAMPLING).to(matrix)).Q
    basis = _further(matrix, basis, ROUNDS)
    found, values = _within(matrix, basis, k)
    sizes = torch.linalg.vector_norm(vectors @ found, dim=0).double()  # of the target's columns
    missing = values[-1] / values[:k].clamp(min=torch.finfo(values.dtype).tiny)
    rounds = torch.arange(ROUNDS, max(ROUNDS, len(matrix) // WORTH) + 1, dtype=values.dtype, device=values.device)
    products = 1 + 2 * rounds
    errors = MISSED * (sizes * missing ** products[:, None]).norm(dim=-1)
    tolerated = TOLERANCE * sizes.norm()
    if errors[0] <= tolerated:
        return found
    enough = (errors <= tolerated / 2).nonzero()
    return _within(matrix, _further(matrix, basis, int(enough[0])), k)[0] if len(enough) else None


def _further(matrix: Tensor, basis: Tensor, rounds: int) -> Tensor:
    """So many more products with AᵀA; columns of Q are graded, so that one of two products needs no QR."""
    for _ in range(rounds):
        basis = torch.linalg.qr(matrix.mT @ (matrix @ basis)).Q
    return basis


def _within(matrix: Tensor, basis: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """U_kΣ_k = A V_k with the best V within the span of a basis, and all singular values, falling, in float64.

    V are eigenvectors of a small Gram matrix, whose squares lose nothing in float64 that float32 products hold.
    """
    image = matrix @ basis
    squares, rotation = torch.linalg.eigh(image.double().mT @ image.double())
    return image @ rotation[:, -k:].flip(-1).to(image.dtype), squares.clamp(min=0).sqrt().flip(-1)


@lru_cache(maxsize=4)
def _drawn(rows: int, columns: int) -> Tensor:
    """Normal random numbers, the same ones on every process and at every time."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def with_signs(columns: Tensor) -> Tensor:
    """Columns `(..., d, k)` whose largest entry is positive."""
    negative = -columns.amin(-2, keepdim=True) > columns.amax(-2, keepdim=True)
    return columns * torch.where(negative, -1.0, 1.0).to(columns.dtype)


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
        target[i] = x[i] @ with_signs(_exact(x[i : i + 1], k))  # the matrix of a batch of one
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
