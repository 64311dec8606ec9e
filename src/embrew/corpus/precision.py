"""Quantise vectors: int8 codes over fixed ranges, and signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Precision = Literal["float32", "int8", "binary"]
LEVELS = 255  # steps between the 256 codes
MARGIN = 0.05  # of the range, added on both sides for later vectors


@dataclass(frozen=True)
class Ranges:
    """Ranges of int8 codes, per dimension: value = minimum + step × (code + 128).

    Attributes:
        minimum: the value of code -128.
        step: difference between two consecutive codes.
    """

    minimum: tuple[float, ...]
    step: tuple[float, ...]

    @classmethod
    def fit(cls, vectors: np.ndarray) -> Ranges:
        """Return the ranges of float `(rows, dimensions)` vectors, 5 % wider on both sides."""
        low, high = vectors.min(0).astype(np.float64), vectors.max(0).astype(np.float64)
        width = (high - low) * (1 + 2 * MARGIN)
        step = np.where(width > 0, width / LEVELS, 1.0)
        return cls(tuple((low - MARGIN * (high - low)).tolist()), tuple(step.tolist()))


def quantize(vectors: np.ndarray, precision: Precision, ranges: Ranges | None = None) -> tuple[np.ndarray, int]:
    """Return the codes of float32 vectors, and the number of values outside the ranges, which were clipped.

    Args:
        vectors: `(rows, dimensions)` float32.
        precision: precision of the codes.
        ranges: ranges of int8 codes.

    Returns:
        `float32` and `int8`: `(rows, dimensions)`; `binary`: uint8 `(rows, ceil(dimensions / 8))`, the first dimension
        in the highest bit, 1 where a value is above 0 (as `ubinary` of Sentence-Transformers).
    """
    if precision == "float32":
        return vectors, 0
    if precision == "binary":
        return np.packbits(vectors > 0, axis=-1), 0
    assert ranges is not None
    levels = np.rint((vectors - np.array(ranges.minimum)) / np.array(ranges.step))
    cut = int(((levels < 0) | (levels > LEVELS)).sum())
    return (np.clip(levels, 0, LEVELS) - 128).astype(np.int8), cut


def dequantize(codes: np.ndarray, *, dimensions: int, ranges: Ranges | None = None) -> np.ndarray:
    """Return float32 `(rows, dimensions)` vectors of codes: int8 within half a step, binary as -1 and 1.

    Args:
        codes: as `quantize` gives them; their dtype says which precision they have.
        dimensions: dimensions of the vectors.
        ranges: ranges of int8 codes.
    """
    if codes.dtype == np.uint8:
        bits = np.unpackbits(codes, axis=-1, count=dimensions)
        return bits.astype(np.float32) * 2 - 1
    if codes.dtype == np.int8:
        if ranges is None:
            raise ValueError("int8 codes need their ranges; give those of the manifest")
        values = np.array(ranges.minimum) + np.array(ranges.step) * (codes.astype(np.float64) + 128)
        return values.astype(np.float32)
    return codes
