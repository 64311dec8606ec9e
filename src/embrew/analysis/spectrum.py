"""Dimensions that vectors use: the spectrum of their covariance.

With σ the singular values of the covariance, in descending order:

    effective dimensions = number of σᵢ > threshold · σ₁
    dimensions for q     = smallest d with Σ_{i ≤ d} σᵢ ≥ q · Σ σᵢ
    participation ratio  = (Σ σᵢ)² / Σ σᵢ²
    RankMe               = exp(−Σ pᵢ ln pᵢ)    with pᵢ = √σᵢ / Σ √σⱼ

Source: *Understanding Dimensional Collapse in Contrastive Self-supervised Learning*; for text and compression *Learning
to Compress*, section 4.1, Figs. 4 and 9; *RankMe* (Garrido et al., 2023, Eq. 1). Dimensional collapse shows as singular
values that fall to almost zero after a few: the vectors lie in a subspace of much lower dimension. The papers name no
threshold below which a dimension counts as unused, so it is a parameter here, and figures without a threshold are
reported too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

ENERGIES = (0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of n vectors.

    Attributes:
        singular_values: σ of the covariance, float64 `(dimensions,)`, largest first.
        texts: number of vectors n.
        threshold: share of the largest singular value above which a dimension counts as used.
    """

    singular_values: np.ndarray
    texts: int
    threshold: float

    @property
    def effective_dimensions(self) -> int:
        """Number of singular values above `threshold` times the largest."""
        return int((self.singular_values > self.threshold * self.singular_values[0]).sum())

    def dimensions_for(self, energy: float) -> int:
        """Return the number of leading singular values with the share `energy` of their sum, the vectors' variance."""
        sums = np.cumsum(self.singular_values)
        return int(np.searchsorted(sums, energy * sums[-1] * (1 - 1e-12))) + 1  # tolerates rounding errors

    @property
    def participation_ratio(self) -> float:
        """(Σ σ)² / Σ σ²: d if the variance is uniform over d dimensions, 1 if it lies in one."""
        return float(self.singular_values.sum() ** 2 / (self.singular_values**2).sum())

    @property
    def rankme(self) -> float:
        """Exponential of the entropy of p = √σ / Σ √σ, the shares of the singular values of the centred vectors.

        The root gives small values more weight than in the other figures.
        """
        roots = np.sqrt(self.singular_values)
        p = roots[roots > 0] / roots.sum()
        return float(np.exp(-(p * np.log(p)).sum()))

    def summary(self) -> dict[str, Any]:
        """Return the figures without the singular values, for JSON."""
        return {
            "texts": self.texts,
            "dimensions": len(self.singular_values),
            "threshold": self.threshold,
            "effective_dimensions": self.effective_dimensions,
            "energy_dimensions": {f"{energy:g}": self.dimensions_for(energy) for energy in ENERGIES},
            "participation_ratio": self.participation_ratio,
            "rankme": self.rankme,
        }


def spectrum_of(vectors: np.ndarray, *, threshold: float = 1e-2) -> Spectrum:
    """Return the spectrum of vectors, in float64.

    Args:
        vectors: `(texts, dimensions)`, not normalised.
        threshold: share of the largest singular value above which a dimension counts as used.

    Raises:
        ValueError: fewer than two vectors, or all are the same; a threshold that is no share.

    Examples:
        >>> square = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> spectrum_of(square).effective_dimensions
        2
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold={threshold:g}; it is a share of the largest singular value, from 0 to below 1")
    count, dimensions = vectors.shape
    if count < 2:
        raise ValueError(f"a covariance of {count} vectors; give two or more")
    mean = vectors.mean(0, dtype=np.float64)
    values = np.linalg.eigvalsh(np.cov(vectors, rowvar=False, dtype=np.float64))[::-1].clip(min=0)
    if values[0] <= np.finfo(np.float32).eps ** 2 * (mean @ mean):
        raise ValueError(
            f"all {count} vectors are the same up to rounding, so they have no spectrum; give different texts"
        )
    if count <= dimensions:
        logger.warning(
            "%d texts for %d dimensions: at most %d singular values can differ from zero, so the figures depend "
            "on the sample more than on the model; give more texts, ideally ten times the number of dimensions",
            count,
            dimensions,
            count - 1,
        )
    return Spectrum(values, count, threshold)
