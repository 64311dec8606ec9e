"""Full and truncated vectors in one t-SNE embedding: the distance by which truncation moves a text.

    distance = mean over texts of ‖p(x) − p(x′)‖
    share    = distance / mean over pairs of texts of ‖p(x) − p(y)‖

with p the points of t-SNE, and x′ the vector x of which only the first dimensions are kept.

Source: *Espresso Sentence Embeddings* (arXiv 2402.14776), Fig. 7: t-SNE of the vectors of the STS-B test set at all
dimensions and at 128, and the mean distance between the two points of a text. The paper does not say how vectors of two
widths are embedded together; here truncated vectors are padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from embrew.text_encoder import unit_vectors

PERPLEXITY = 30


@dataclass(frozen=True)
class Truncation:
    """Points of each text in the plane, of its full and its truncated vector.

    Attributes:
        full: points of full vectors, `(texts, 2)`.
        truncated: points of truncated vectors, `(texts, 2)`.
        dim: number of dimensions of the truncated vectors.
        width: number of dimensions of the full vectors.
    """

    full: np.ndarray
    truncated: np.ndarray
    dim: int
    width: int

    @property
    def distance(self) -> float:
        """Mean distance between the two points of a text."""
        return float(np.linalg.norm(self.full - self.truncated, axis=1).mean())

    @property
    def share(self) -> float:
        """`distance` as a share of the mean distance between different texts, since t-SNE has no unit."""
        from scipy.spatial.distance import pdist

        return self.distance / float(pdist(self.full).mean())

    def summary(self) -> dict[str, Any]:
        """Return the figures, for JSON."""
        return {"dim": self.dim, "texts": len(self.full), "distance": self.distance, "distance_share": self.share}


def truncation_of(vectors: np.ndarray, dim: int, *, perplexity: float = PERPLEXITY, seed: int = 42) -> Truncation:
    """Embed vectors and their truncations together in the plane with scikit-learn's t-SNE.

    Args:
        vectors: `(texts, dimensions)`; full and truncated vectors are normalised.
        dim: number of leading dimensions to keep; the others are zero.
        perplexity: perplexity of t-SNE.
        seed: random seed of t-SNE, which is initialised with the principal components.

    Raises:
        ValueError: `dim` is not below the width, or there are too few texts for the perplexity.
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
