"""Vectors in two dimensions: principal components or t-SNE, turned so that several models' maps can be compared."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

COMPONENTS = 50  # kept of a model's vectors; t-SNE starts from them
SEED = 42


class Components(NamedTuple):
    """Coordinates of vectors on their first principal components.

    Attributes:
        points: float32 `(texts, components)`.
        variance: Share of the vectors' variance by component.
    """

    points: np.ndarray
    variance: np.ndarray


def components_of(vectors: np.ndarray, *, count: int = COMPONENTS) -> Components:
    """Return the first principal components of `(texts, dimensions)` vectors, at least two (the missing ones are 0)."""
    from sklearn.decomposition import PCA

    found = PCA(min(count, *vectors.shape), random_state=SEED)
    with np.errstate(invalid="ignore"):  # the same vector in all rows has no variance
        points = found.fit_transform(vectors.astype(np.float64))
    missing = max(2 - points.shape[1], 0)
    variance = np.nan_to_num(np.pad(found.explained_variance_ratio_, (0, missing)))
    return Components(np.pad(points, ((0, 0), (0, missing))).astype(np.float32), variance)


def tsne(points: np.ndarray) -> np.ndarray:
    """Return t-SNE coordinates of principal components, `(texts, 2)`; perplexity 30, less for few texts."""
    from sklearn.manifold import TSNE

    if len(points) < 4:
        return points[:, :2]
    perplexity = min(30.0, (len(points) - 1) / 3)
    return np.asarray(TSNE(2, perplexity=perplexity, init="pca", random_state=SEED).fit_transform(points))


def aligned(points: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return points turned, mirrored, moved and scaled onto the reference, so that distances change by one factor.

    Orthogonal Procrustes analysis: both `(texts, 2)` sets are centred and scaled to the same size.
    """
    from scipy.linalg import orthogonal_procrustes

    moved, target = unit(points), unit(reference)
    turn: Any = orthogonal_procrustes(moved, target)[0]
    return np.asarray(moved @ turn)


def unit(points: np.ndarray) -> np.ndarray:
    """Return points around their mean with a mean squared distance of 1 from it."""
    centred = points - points.mean(0)
    size = np.sqrt((centred**2).sum(1).mean())
    return np.asarray(centred / size if size > 0 else centred)
