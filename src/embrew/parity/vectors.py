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
        """Return whether every text reaches a cosine: a mean would hide a single wrong one."""
        return self.lowest >= min_cosine


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
