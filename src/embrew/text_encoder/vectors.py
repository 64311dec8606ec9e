"""Checks of the vectors that encoders return."""

from collections.abc import Sequence
from typing import Any

import numpy as np

BLOCK = 8192  # vectors


def checked_vectors(vectors: Any, *, what: str, texts: Sequence[str] | None = None) -> np.ndarray:
    """Return vectors as float32.

    Args:
        vectors: `(texts, dimensions)`.
        what: name of the texts, for the message.
        texts: the texts; the vector of an empty text may be zero: an encoder that pools over the text alone has
            nothing to pool, and corpora hold empty documents.

    Raises:
        ValueError: a vector is zero or not finite, so that it has no direction.
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
    """Return vectors as float32 of length 1; a zero vector of an empty text stays zero, so its cosines are 0."""
    array = checked_vectors(vectors, what=what, texts=texts)
    norms = norms_of(array)[:, None]
    unit: np.ndarray = array / np.where(norms > 0, norms, 1)
    return unit
