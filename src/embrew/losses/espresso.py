"""ESE: weights of layers, targets of shallow vectors, and the loss between leading dimensions and these targets.

A target is the principal part of the dependencies between an embedding's dimensions. It is a constant, not
differentiated. Signs of singular vectors are arbitrary, and a target whose signs change from step to step cannot be
learnt, so the largest entry of every column is made positive. Random numbers come from a separate generator: the same
input gives the same target, on every process and at every time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from embrew.float32 import full_float32

logger = logging.getLogger(__name__)
Compression = Literal["dependencies", "direct", "max_k"]
SVD = Literal["auto", "exact"]
OVERSAMPLING = 32
ROUNDS = 1  # products with AᵀA before the spectrum of a subspace is checked
ROUND_WIDTH = 48  # the exact solver is as fast as width / `ROUND_WIDTH` rounds
WIDE = 1024  # dimensions above which no matrix is solved exactly unless asked: the time grows with their third power
MAX_PRODUCTS = 32  # with AᵀA for a wider matrix, whatever its spectrum
GRADED = 1e5  # ratio of a filter's largest to its smallest gain, up to which float32 columns stay independent
TOLERANCE = 2e-4  # expected relative error of a target above which a subspace is iterated further
ERROR_FACTOR = 5.0  # measured errors ÷ (σ_last / σ_j)ⁿ, with `OVERSAMPLING` columns more than asked for
RANKS = ((1.0, 10), (10.0, 26), (50.0, 72))  # (c, terms): enough for float64 where c bounds the kernel's argument


def layer_weights(layers: int) -> Tensor:
    """w_i = 1 / (1 + ln i) for layers 1 to n − 1, and 1 for the last: `(layers,)` float32.

    *ESE: Espresso Sentence Embeddings* (arXiv 2402.14776), Eq. 2.
    """
    weights = 1.0 / (1.0 + torch.arange(1, layers + 1, dtype=torch.float32).log())
    weights[-1] = 1.0
    return weights


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
    """Return the target of the first k dimensions: `(..., texts, k)`, float32 (float64 for float64), no gradient.

    Args:
        vectors: X `(..., texts, d)`, layers first.
        k: number of dimensions of the target.
        compression: `dependencies`: X·U_kΣ_k, with A ≈ UΣVᵀ the dependency matrix (the paper's Eqs. 3–5); `direct`:
            U_kΣ_k of the centred X itself; `max_k`: X times the k largest entries of every row of A.
        per_text: one dependency matrix per text, as Eq. 3 is printed, instead of one per batch.
        svd: `auto`: subspace iteration, and the exact solver if the spectrum is too flat for it; `exact`.
        source: texts of which A (or the direct compression) is computed, `(..., texts, d)`; X by default.

    Raises:
        ValueError: k is not between 1 and d, or `per_text` with another compression.
    """
    width = vectors.shape[-1]
    if not 1 <= k <= width:
        raise ValueError(f"k={k} of {width} dimensions; give 1 to {width}")
    if per_text and compression != "dependencies":
        raise ValueError(f"a dependency matrix for every text goes with compression=dependencies, not {compression}")
    precision = torch.float64 if vectors.dtype == torch.float64 else torch.float32
    with full_float32(vectors.device.type):
        x = vectors.detach().to(precision)
        texts = x if source is None else source.detach().to(precision)
        if per_text:
            return per_text_target(x, k)
        if compression == "direct":
            return _direct(x, texts, k)
        if compression == "max_k":
            return x @ dependency(texts).topk(k, dim=-1).values
        return x @ principal_dependencies(texts, k, svd=svd)


def compression_loss(leading: Tensor, target: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Mean (S − T)² + t · KL(softmax(T/t) ‖ softmax(S/t)), one value per layer: `(...)` float32.

    Espresso Sentence Embeddings, Eq. 6, as the authors' code has it: the KL is a mean over texts, times t.

    Args:
        leading: S `(..., texts, k)`, the first k dimensions.
        target: T `(..., texts, k)`; no gradient.
        temperature: t.

    Raises:
        ValueError: the shapes differ, or t is not positive.
    """
    if leading.shape != target.shape:
        raise ValueError(
            f"leading dimensions {tuple(leading.shape)} and target {tuple(target.shape)} must have the same shape"
        )
    if temperature <= 0:
        raise ValueError(f"temperature={temperature}; it must be positive")
    with full_float32(leading.device.type):
        if leading.dtype != torch.float64:
            leading, target = leading.float(), target.float()
        target = target.detach()
        if not leading.shape[-2]:  # another process has all texts
            return leading.sum((-2, -1))
        squares = (leading - target).square().mean((-2, -1))
        wanted = functional.log_softmax(target / temperature, dim=-1)
        student = functional.log_softmax(leading / temperature, dim=-1)
        kl = functional.kl_div(student, wanted, reduction="none", log_target=True).sum(-1).mean(-1)
        return squares + temperature * kl


def principal_dependencies(vectors: Tensor, k: int, *, svd: SVD = "auto") -> Tensor:
    """Return U_kΣ_k `(..., d, k)` of the dependency matrices of X `(..., texts, d)`, largest entries positive.

    With `auto`, a seeded subspace is iterated for one matrix after another (so that it stays in the cache, and the
    matrices of all layers are never held at once), with more rounds if the spectrum decays slowly. If it is flat, which
    is logged once, the exact solver is used. It runs in float64: neighbours in a flat spectrum are closer than float32
    can distinguish. Above `WIDE` dimensions, the subspace is filtered instead (`_filtered`), at a bounded cost.

    The host waits for a GPU once for all subspaces, once more if some are iterated further, and once for all exact
    solutions; filtering waits several times for each matrix.
    """
    width, layers = vectors.shape[-1], vectors.reshape(-1, *vectors.shape[-2:])
    columns: list[Tensor | None] = [None] * len(layers)
    if svd == "auto" and k + OVERSAMPLING < width:
        columns = _iterated(layers, k)
        if any(solution is None for solution in columns):
            _log_flat(width)
            if width > WIDE:
                columns = [
                    _filtered(layers[i], k) if solution is None else solution for i, solution in enumerate(columns)
                ]
    exact = iter(_exact([layers[i] for i, solution in enumerate(columns) if solution is None], k))
    stacked = torch.stack([next(exact) if solution is None else solution for solution in columns])
    return with_signs(stacked.view(*vectors.shape[:-2], width, k))


@cache
def _log_flat(width: int) -> None:
    """Log once per width that the spectrum is flat."""
    if width <= WIDE:
        method = "are solved exactly, which takes longer"
    else:
        method = (
            f"are iterated {MAX_PRODUCTS} times; directions whose singular values differ by less than about 1 % may be "
            "mixed"
        )
    logger.info("dependency matrices of %d dimensions with a flat spectrum %s", width, method)


def _exact(layers: Sequence[Tensor], k: int) -> list[Tensor]:
    """Return U_kΣ_k of each matrix, from A Aᵀ = U Σ² Uᵀ in float64, whose squares resolve all float32 values.

    On a GPU they are solved in one call, for which the host waits once, unless they are wide and need much memory.
    """
    if not layers:
        return []
    if layers[0].device.type == "cpu" or layers[0].shape[-1] > WIDE:
        solved = [torch.linalg.eigh(_squared(layer)) for layer in layers]
    else:
        solved = list(zip(*torch.linalg.eigh(torch.stack([_squared(layer) for layer in layers])), strict=True))
    columns = (u[:, -k:] * squares[-k:].clamp(min=0).sqrt() for squares, u in solved)
    return [principal.flip(-1).to(layers[0].dtype) for principal in columns]


def _squared(vectors: Tensor) -> Tensor:
    matrix = dependency(vectors.double())
    return matrix @ matrix.mT


def _iterated(layers: Tensor, k: int) -> list[Tensor | None]:
    """Return U_kΣ_k of each matrix; None if its spectrum is so flat that an exact solver is as fast.

    Subspace iteration (Halko, Martinsson and Tropp, "Finding structure with randomness", arXiv 0909.4061, Algorithm
    4.4) towards the right singular vectors. After n products with A or Aᵀ, the error of column j is proportional to
    (σ_last / σ_j)ⁿ, so that the first estimate of the spectrum predicts how many more are needed. Spectra are computed
    on the CPU, from small matrices of all layers that are copied together.
    """
    drawn = _drawn(layers.shape[-1], k + OVERSAMPLING).to(layers.device, layers.dtype, non_blocking=True)
    bases, images = [], []
    for layer in layers:
        matrix = dependency(layer)
        bases.append(_iterated_basis(matrix, torch.linalg.qr(matrix.mT @ drawn).Q, ROUNDS))
        images.append(matrix @ bases[-1])
    targets = [_gram(layer @ image) for layer, image in zip(layers, images, strict=True)]
    grams = torch.stack([*map(_gram, images), *targets]).cpu()
    columns: list[Tensor | None] = [None] * len(layers)
    unfinished = {}
    for i, (gram, target) in enumerate(zip(*grams.chunk(2), strict=True)):
        values, rotation = _spectrum(gram, k)
        sizes = (rotation * (target @ rotation)).sum(0).clamp(min=0).sqrt()  # of the target's columns
        rounds = _missing_rounds(values, sizes, layers.shape[-1])
        if rounds == 0:
            columns[i] = _rotated(images[i], rotation)
        elif rounds is not None:
            matrix = dependency(layers[i])
            unfinished[i] = matrix @ _iterated_basis(matrix, bases[i], rounds)
    if unfinished:
        for (i, image), gram in zip(
            unfinished.items(), torch.stack([*map(_gram, unfinished.values())]).cpu(), strict=True
        ):
            columns[i] = _rotated(image, _spectrum(gram, k)[1])
    return columns


def _missing_rounds(values: Tensor, sizes: Tensor, width: int) -> int | None:
    """Return how many more products with AᵀA a basis needs after `ROUNDS`; None: too many.

    Args:
        values: singular values of A in the basis, descending.
        sizes: norms of the target's columns.
        width: dimensions of A.
    """
    missing = values[-1] / values[: len(sizes)].clamp(min=torch.finfo(values.dtype).tiny)
    limit = max(ROUNDS, min(width, WIDE) // ROUND_WIDTH)
    rounds = torch.arange(ROUNDS, limit + 1, dtype=values.dtype)
    products = 1 + 2 * rounds
    errors = ERROR_FACTOR * (sizes * missing ** products[:, None]).norm(dim=-1)
    tolerated = TOLERANCE * sizes.norm()
    if errors[0] <= tolerated:
        return 0
    enough = (errors <= tolerated / 2).nonzero()
    return int(enough[0]) if len(enough) else None


def _filtered(vectors: Tensor, k: int) -> Tensor:
    """Return U_kΣ_k of one matrix after `MAX_PRODUCTS` products of a block with AᵀA, for a flat spectrum.

    Chebyshev polynomials of AᵀA, small on the squares below that of the block's last singular value, amplify a
    direction above it exponentially in √gap, where powers do so in the gap (Zhou, Saad, Tiago and Chelikowsky,
    "Self-consistent-field calculations using Chebyshev-filtered subspace iteration", 2006). The rotation within the
    block is found in float64. Singular values are exact to about the square of the directions' error; directions whose
    singular values are closer than about 1 % of each other at the block's end may be mixed.
    """
    matrix = dependency(vectors)
    basis = torch.linalg.qr(matrix.mT @ _drawn(len(matrix), min(k + OVERSAMPLING, len(matrix))).to(matrix)).Q
    done = 0
    while done < MAX_PRODUCTS:
        squares = _principal_columns(matrix, basis, k)[1].square()
        end = max(float(squares[-1]), torch.finfo(matrix.dtype).eps * float(squares[0]))
        span = math.acosh(max(2 * float(squares[0]) / end - 1, 1.0))
        degree = max(1, int(math.acosh(GRADED) / max(span, 1e-3)))
        degree = min(degree, max(2, done), MAX_PRODUCTS - done)  # few while the spectrum's end is uncertain
        basis = _chebyshev(matrix, basis, degree, end / 2)
        done += degree
    return _principal_columns(dependency(vectors.double()), basis.double(), k)[0].to(vectors.dtype)


def _chebyshev(matrix: Tensor, basis: Tensor, degree: int, half: float) -> Tensor:
    """Return a basis of T_degree(AᵀA / half − 1) times a basis; the polynomial is at most 1 on squares up to 2 half."""
    before, now = basis, (matrix.mT @ (matrix @ basis)) / half - basis
    for _ in range(degree - 1):
        before, now = now, (matrix.mT @ (matrix @ now)) * (2 / half) - 2 * now - before
    return torch.linalg.qr(now).Q


def _iterated_basis(matrix: Tensor, basis: Tensor, rounds: int) -> Tensor:
    """Return a basis after `rounds` more products with AᵀA; one QR per round, since columns of Q are graded."""
    for _ in range(rounds):
        basis = torch.linalg.qr(matrix.mT @ (matrix @ basis)).Q
    return basis


def _principal_columns(matrix: Tensor, basis: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return U_kΣ_k = A V_k with the best V in the span of a basis, and all singular values, descending, in float64.

    V are eigenvectors of a small Gram matrix, whose squares in float64 are as precise as the float32 products.
    """
    image = matrix @ basis
    values, rotation = _spectrum(_gram(image), k)
    return _rotated(image, rotation), values


def _gram(columns: Tensor) -> Tensor:
    return columns.double().mT @ columns.double()


def _spectrum(gram: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return singular values, descending, and the right singular vectors of the first k, from a Gram matrix."""
    squares, rotation = torch.linalg.eigh(gram)
    return squares.clamp(min=0).sqrt().flip(-1), rotation[:, -k:].flip(-1)


def _rotated(image: Tensor, rotation: Tensor) -> Tensor:
    return image @ rotation.to(image.device, image.dtype, non_blocking=True)


@lru_cache(maxsize=4)
def _drawn(rows: int, columns: int) -> Tensor:
    """Return normal random numbers, the same in every process and on every call."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def with_signs(columns: Tensor) -> Tensor:
    """Return columns `(..., d, k)` with signs such that the largest entry of each is positive."""
    negative = -columns.amin(-2, keepdim=True) > columns.amax(-2, keepdim=True)
    return columns * torch.where(negative, -1.0, 1.0).to(columns.dtype)


def _direct(x: Tensor, texts: Tensor, k: int) -> Tensor:
    """Return principal components of the centred texts, padded with zeros to k."""
    mean = texts.mean(-2, keepdim=True)
    _, _, v = torch.linalg.svd(texts - mean, full_matrices=False)
    target = (x - mean) @ with_signs(v.mT[..., :k])
    return torch.nn.functional.pad(target, (0, k - target.shape[-1]))


def per_text_target(vectors: Tensor, k: int) -> Tensor:
    """Return xᵀ U_kΣ_k with A = softmax of x xᵀ / √d for every text: `(..., texts, k)`.

    exp(x_i x_j / √d) is a smooth function of two numbers, so A has a rank of about ten. It is expanded in Chebyshev
    polynomials of x_j and never formed: the cost is O(d r²) per text, and components beyond the rank r, which would be
    rounding noise, are zero. If single entries are so large that more than 72 terms are needed, A is formed.
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
            rank = min(k, terms)
            target[rows, :rank] = _expanded(x[rows], low[rows], high[rows], terms)[:, :rank]
    for i in (~done).nonzero()[:, 0].tolist():
        text = x[i : i + 1]  # the matrix of a batch of one
        target[i] = x[i] @ with_signs(_exact([text], k)[0] if width <= WIDE else _filtered(text, k))
    return target.view(*shape, k).to(vectors.dtype)


def _expanded(x: Tensor, low: Tensor, high: Tensor, terms: int) -> Tensor:
    """Return components `(texts, terms)`, from A = K Pᵀ P the Chebyshev polynomials at x and K their coefficients."""
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
