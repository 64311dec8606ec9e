"""Cosines of vectors in pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Agreement:
    """How close vectors are to others.

    Attributes:
        mean: of the cosines.
        lowest: of the cosines.
        difference: largest difference of a number.
    """

    mean: float
    lowest: float
    difference: float

    def reaches(self, min_cosine: float) -> bool:
        """Return whether the mean cosine reaches a limit, and no text lies much farther away."""
        return self.mean >= min_cosine and self.lowest >= lowest_of(min_cosine)


def lowest_of(min_cosine: float) -> float:
    """Return the lowest cosine of a single text where `min_cosine` is the limit of the mean: 4 times the distance."""
    return 1 - 4 * (1 - min_cosine)


def agreement(found: np.ndarray, right: np.ndarray) -> Agreement:
    """Compare `(texts, dimensions)`, in the leading dimensions that both have; a zero vector has cosine 0."""
    keep = min(found.shape[1], right.shape[1])
    a, b = found[:, :keep].astype(np.float64), right[:, :keep].astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosines = np.divide((a * b).sum(-1), lengths, out=np.zeros(len(a)), where=lengths > 0)
    cosines[lengths == 0] = np.all(a == b, axis=-1)[lengths == 0]
    return Agreement(float(cosines.mean()), float(cosines.min()), float(np.abs(a - b).max()))


def norms(vectors: np.ndarray) -> np.ndarray:
    """Return lengths, `(texts,)`."""
    lengths: np.ndarray = np.linalg.norm(vectors.astype(np.float64), axis=-1)
    return lengths
