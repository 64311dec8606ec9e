"""Vectors in fewer bytes: 8-bit codes over ranges that are fixed once, and signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Precision = Literal["float32", "int8", "binary"]
LEVELS = 255  # steps between the 256 codes
MARGIN = 0.05  # of the range seen, added on either side for vectors that come later


@dataclass(frozen=True)
class Ranges:
    """What an int8 code means, for each dimension: value = minimum + step × (code + 128).

    Attributes:
        minimum: the value of code -128.
        step: from a code to the next.
    """

    minimum: tuple[float, ...]
    step: tuple[float, ...]

    @classmethod
    def fit(cls, vectors: np.ndarray) -> Ranges:
        """Ranges that cover float `(rows, dimensions)` vectors and 5 % more on either side."""
        low, high = vectors.min(0).astype(np.float64), vectors.max(0).astype(np.float64)
        width = (high - low) * (1 + 2 * MARGIN)
        step = np.where(width > 0, width / LEVELS, 1.0)
        return cls(tuple((low - MARGIN * (high - low)).tolist()), tuple(step.tolist()))

    @classmethod
    def of(cls, values: Mapping[str, Sequence[float]] | None) -> Ranges | None:
        """Ranges out of a manifest."""
        return None if values is None else cls(tuple(values["minimum"]), tuple(values["step"]))

    def as_dict(self) -> dict[str, Any]:
        """For a manifest."""
        return {"minimum": list(self.minimum), "step": list(self.step)}


def quantize(vectors: np.ndarray, precision: Precision, ranges: Ranges | None = None) -> tuple[np.ndarray, int]:
    """Codes of float32 vectors, and how many values lay outside the ranges and were cut to them.

    Args:
        vectors: `(rows, dimensions)` float32.
        precision: what is wanted.
        ranges: for int8.

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


def columns(dimensions: int, precision: Precision) -> int:
    """Numbers that are stored of a vector: one per dimension, or one per eight of them."""
    return -(-dimensions // 8) if precision == "binary" else dimensions


def dequantize(codes: np.ndarray, *, dimensions: int, ranges: Ranges | None = None) -> np.ndarray:
    """Float32 `(rows, dimensions)` vectors of codes; int8 within half a step, binary as -1 and 1.

    Args:
        codes: as `quantize` gives them; their dtype says which precision they have.
        dimensions: of the vectors.
        ranges: of int8 codes.
    """
    if codes.dtype == np.uint8:
        bits = np.unpackbits(codes, axis=-1, count=dimensions)
        return bits.astype(np.float32) * 2 - 1
    if codes.dtype == np.int8:
        if ranges is None:
            raise ValueError("int8 codes mean nothing without their ranges; give those of the manifest")
        values = np.array(ranges.minimum) + np.array(ranges.step) * (codes.astype(np.float64) + 128)
        return values.astype(np.float32)
    return codes
