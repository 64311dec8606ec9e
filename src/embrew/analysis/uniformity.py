"""Alignment and uniformity: closeness of similar texts, and spread of all texts over the sphere.

    alignment  = E ‖f(x) − f(x⁺)‖²               over positive pairs
    uniformity = log E exp(−2 ‖f(x) − f(y)‖²)    over pairs of different texts

with f(x) a vector of length 1. Lower is better for both.

Source: *Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere* (Wang &
Isola, 2020); for text *SimCSE* (Gao et al., 2021), whose choice of positive pairs is used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embrew.analysis.input_texts import vectors_of
from embrew.text_encoder import TextEncoder, unit_vectors

BLOCK = 1024  # rows of the matrix of cosines that are in memory at a time


def alignment(left: np.ndarray, right: np.ndarray) -> float:
    """Return the alignment of positive pairs: rows of two `(pairs, dimensions)` matrices of unit vectors."""
    return float((np.linalg.norm(left.astype(np.float64) - right, axis=-1) ** 2).mean())


def uniformity(vectors: np.ndarray) -> float:
    """Return the uniformity over all pairs of different rows of a matrix of unit vectors.

    Products are in the vectors' own precision (float32 from an encoder), sums in float64.
    """
    count = len(vectors)
    if count < 2:
        raise ValueError(f"uniformity of {count} vectors; give two or more")
    total = 0.0
    for start in range(0, count, BLOCK):
        cosines = (vectors[start : start + BLOCK] @ vectors.T).astype(np.float64).clip(-1, 1)
        kernel = np.exp(-2 * (2 - 2 * cosines))
        total += float(kernel.sum() - np.trace(kernel, offset=start))
    return float(np.log(total / (count * (count - 1))))


@dataclass(frozen=True)
class AlignmentUniformity:
    """Alignment and uniformity, and the numbers of pairs and texts they are computed on."""

    alignment: float
    uniformity: float
    positives: int
    texts: int


def positive_pairs(
    sentence1: Sequence[str], sentence2: Sequence[str], scores: Sequence[float], *, above: float = 4.0
) -> list[tuple[str, str]]:
    """Return the pairs of an STS set with scores above `above`; the default is *SimCSE*'s, for scores from 0 to 5.

    Raises:
        ValueError: there are none.
    """
    pairs = [(x, y) for x, y, score in zip(sentence1, sentence2, scores, strict=True) if score > above]
    if not pairs:
        raise ValueError(
            f"no pair scores above {above:g}; the highest score is {max(scores):g}; give a lower threshold"
        )
    return pairs


def alignment_uniformity(
    encoder: TextEncoder,
    positives: Sequence[tuple[str, str]],
    texts: Sequence[str],
    *,
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> AlignmentUniformity:
    """Return alignment over `positives` and uniformity over `texts`; every text is encoded once.

    Args:
        encoder: the encoder.
        positives: pairs of similar texts.
        texts: distinct texts, such as all sentences of an STS set; a duplicate would count as a collapsed pair.
        batch_tokens: padded tokens per batch; for an `Encoder` only.
        show_progress_bar: show a progress bar.
    """
    distinct = list(dict.fromkeys([*texts, *(text for pair in positives for text in pair)]))
    position = {text: row for row, text in enumerate(distinct)}
    vectors = vectors_of(encoder, distinct, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    vectors = unit_vectors(vectors, what="texts")
    left, right = ([position[pair[side]] for pair in positives] for side in (0, 1))
    return AlignmentUniformity(
        alignment=alignment(vectors[left], vectors[right]),
        uniformity=uniformity(vectors[: len(texts)]),
        positives=len(positives),
        texts=len(texts),
    )
