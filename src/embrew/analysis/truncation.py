"""Whole and truncated vectors in one picture: where truncation moves a text.

*Espresso Sentence Embeddings* (arXiv 2402.14776), Fig. 7: t-SNE of the vectors of the STS-B test set at all dimensions
and at 128, and the mean distance between the two points of a text. The paper does not say how vectors of two widths
come into one picture; here the truncated ones get zeros for what is gone, and both are embedded together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embrew.text_encoder.vectors import unit_vectors

PERPLEXITY = 30


@dataclass(frozen=True)
class Truncation:
    """Where each text lies in the plane, whole and truncated.

    Attributes:
        whole: `(texts, 2)`.
        truncated: `(texts, 2)`.
        dim: dimensions that the truncated vectors keep.
        width: dimensions of the whole ones.
    """

    whole: np.ndarray
    truncated: np.ndarray
    dim: int
    width: int

    @property
    def distance(self) -> float:
        """Mean distance between the two points of a text."""
        return float(np.linalg.norm(self.whole - self.truncated, axis=1).mean())

    @property
    def share(self) -> float:
        """The same as a share of the mean distance between different texts, since a plane of t-SNE has no unit."""
        from scipy.spatial.distance import pdist

        return self.distance / float(pdist(self.whole).mean())


def truncation_of(vectors: np.ndarray, dim: int, *, perplexity: float = PERPLEXITY, seed: int = 42) -> Truncation:
    """Embed vectors and their truncations in the plane together, by scikit-learn's t-SNE.

    Args:
        vectors: `(texts, dimensions)`; both kinds are brought to unit length.
        dim: leading dimensions that the truncated ones keep; the others are zero.
        perplexity: of t-SNE.
        seed: of t-SNE, which starts from the principal components.

    Raises:
        ValueError: `dim` is not below the width; too few texts for the perplexity.
    """
    from sklearn.manifold import TSNE

    count, width = vectors.shape
    if not 1 <= dim < width:
        raise ValueError(f"dim={dim}; vectors of {width} dimensions can be truncated to 1 to {width - 1}")
    if 2 * count <= perplexity:
        raise ValueError(f"{count} texts for perplexity {perplexity:g}; give more than {perplexity / 2:g}")
    truncated = np.where(np.arange(width) < dim, vectors, 0)
    both = np.concatenate([unit_vectors(vectors, what="texts"), unit_vectors(truncated, what="texts")])
    points = TSNE(perplexity=perplexity, random_state=seed, init="pca").fit_transform(both)
    return Truncation(points[:count], points[count:], dim, width)
