"""Dimensions that vectors use: the spectrum of their covariance.

Dimensional collapse shows as singular values that fall to almost zero after a few: the vectors lie in a subspace of
much lower dimension (*Understanding Dimensional Collapse in Contrastive Self-supervised Learning*; for text and
compression *Learning to Compress*, section 4.1, Figs. 4 and 9). The papers name no threshold below which a dimension
counts as unused, so it is a parameter here, and figures without a threshold are reported too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

ENERGIES = (0.9, 0.95, 0.99)


def covariance(chunks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray, int]:
    """Return mean and covariance of vectors that come in chunks, in float64.

    Memory does not grow with the number of vectors. Each chunk is centred on its own mean and then shifted to the
    common mean: sums of raw outer products would lose the small singular values of vectors far from zero.

    Args:
        chunks: `(any number, dimensions)` each.

    Returns:
        Mean `(dimensions,)`, covariance `(dimensions, dimensions)` divided by n - 1 as in `numpy.cov`, and n.
    """
    mean: Any = 0.0
    scatter: Any = 0.0
    count = 0
    for chunk in chunks:
        rows = np.asarray(chunk, dtype=np.float64)
        if not len(rows):
            continue
        shift = rows.mean(0) - mean
        centred = rows - rows.mean(0)
        total = count + len(rows)
        scatter = scatter + centred.T @ centred + np.outer(shift, shift) * (count * len(rows) / total)
        mean = mean + shift * (len(rows) / total)
        count = total
    if count < 2:
        raise ValueError(f"a covariance of {count} vectors; give two or more")
    return mean, scatter / (count - 1), count


def singular_values(covariance: np.ndarray) -> np.ndarray:
    """Return the singular values of a covariance, largest first: its eigenvalues, clipped at zero."""
    values: np.ndarray = np.linalg.eigvalsh(covariance)[::-1].clip(min=0)
    return values


def effective_dimensions(values: np.ndarray, *, threshold: float = 1e-2) -> int:
    """Return the number of singular values above `threshold` times the largest."""
    return int((values > threshold * values[0]).sum())


def dimensions_for(values: np.ndarray, *, energy: float) -> int:
    """Return the number of leading singular values with the share `energy` of their sum, the vectors' variance."""
    sums = np.cumsum(values)
    return int(np.searchsorted(sums, energy * sums[-1] * (1 - 1e-12))) + 1  # tolerates rounding errors


def participation_ratio(values: np.ndarray) -> float:
    """Return (Σ σ)² / Σ σ²: d if the variance is uniform over d dimensions, 1 if it lies in one."""
    return float(values.sum() ** 2 / (values**2).sum())


def rankme(values: np.ndarray) -> float:
    """Return the exponential of the entropy of p = s / Σ s, with s the singular values of the centred vectors.

    *RankMe* (Garrido et al., 2023, Eq. 1), on centred vectors. `values` are those of the covariance, so s is their
    root (up to a factor that cancels). The root gives small values more weight than in the other figures.
    """
    roots = np.sqrt(values)
    p = roots[roots > 0] / roots.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of n vectors.

    Attributes:
        singular_values: of the covariance, float64 `(dimensions,)`, largest first.
        texts: number of vectors n.
        threshold: share of the largest singular value above which a dimension counts as used.
    """

    singular_values: np.ndarray
    texts: int
    threshold: float

    def summary(self) -> dict[str, Any]:
        """Return the figures without the singular values, for JSON."""
        values = self.singular_values
        return {
            "texts": self.texts,
            "dimensions": len(values),
            "threshold": self.threshold,
            "effective_dimensions": effective_dimensions(values, threshold=self.threshold),
            "energy_dimensions": {f"{energy:g}": dimensions_for(values, energy=energy) for energy in ENERGIES},
            "participation_ratio": participation_ratio(values),
            "rankme": rankme(values),
        }


def spectrum_of(chunks: Iterable[np.ndarray], *, threshold: float = 1e-2) -> Spectrum:
    """Return the spectrum of vectors that come in chunks; see `embrew.analysis.vectors` for vectors of texts.

    Args:
        chunks: `(any number, dimensions)` each, not normalised.
        threshold: share of the largest singular value above which a dimension counts as used.

    Raises:
        ValueError: fewer than two vectors, or all are the same; a threshold that is no share.

    Examples:
        >>> import numpy as np
        >>> square = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> spectrum_of([square]).summary()["effective_dimensions"]
        2
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold={threshold:g}; it is a share of the largest singular value, from 0 to below 1")
    mean, matrix, count = covariance(chunks)
    values = singular_values(matrix)
    if values[0] <= np.finfo(np.float32).eps ** 2 * (mean @ mean):
        raise ValueError(
            f"all {count} vectors are the same up to rounding, so they have no spectrum; give different texts"
        )
    if count <= len(values):
        logger.warning(
            "%d texts for %d dimensions: at most %d singular values can differ from zero, so the figures depend "
            "on the sample more than on the model; give more texts, ideally ten times the number of dimensions",
            count,
            len(values),
            count - 1,
        )
    return Spectrum(values, count, threshold)
