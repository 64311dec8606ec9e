"""Vectors that encoders return, checked before anything is computed with them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

BLOCK = 8192  # vectors


def checked_vectors(vectors: Any, *, what: str, texts: Sequence[str] | None = None) -> np.ndarray:
    """Vectors as float32; one that has no direction is an error, not a score.

    Where `texts` are given, the vector of an empty one may be zero: an encoder that pools over the text alone has
    nothing to pool there, and corpora hold empty documents.
    """
    array: np.ndarray = np.asarray(vectors, dtype=np.float32)
    norms = norms_of(array)
    bad = norms == 0
    if texts is not None:
        bad &= np.array([bool(text.strip()) for text in texts], dtype=bool)
    bad |= ~np.isfinite(norms)
    if bad.any():
        raise ValueError(
            f"{int(bad.sum())} of {len(array)} vectors of {what} are zero or not finite (the first: number "
            f"{int(bad.argmax())}); the model has diverged, or its dtype overflows: try dtype float32"
        )
    return array


def norms_of(array: np.ndarray) -> np.ndarray:
    """Lengths of vectors, `(vectors,)`; the squares are those of `BLOCK` vectors at a time."""
    blocks = [np.linalg.norm(array[start : start + BLOCK], axis=-1) for start in range(0, len(array), BLOCK)]
    return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.float32)


def unit_vectors(vectors: Any, *, what: str, texts: Sequence[str] | None = None) -> np.ndarray:
    """Vectors as float32 of length 1; a zero vector that `texts` excuses stays zero, its cosine with anything is 0."""
    array = checked_vectors(vectors, what=what, texts=texts)
    norms = norms_of(array)[:, None]
    unit: np.ndarray = array / np.where(norms > 0, norms, 1)
    return unit
