"""Settings of an encoding job, shared by both engines; its output files; vectors as int8 codes or as signs.

Most readers of a folder read every file as Parquet. They ignore a folder whose name begins with two underscores; one
underscore is not enough for `datasets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from embrew.data.rejects import MAX_RATE, OnBadRows
from embrew.stores import Place, place_of

Precision = Literal["float32", "int8", "binary"]
LEVELS = 255  # steps between the 256 codes
NARROW = 1e-9  # width of the range of a dimension that is constant
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
        """Return the ranges of float `(rows, dimensions)` vectors, 5 % wider on both sides, with a code for 0.

        A dimension with one value has a range of almost no width, so that other values count as outside.
        """
        low, high = vectors.min(0).astype(np.float64), vectors.max(0).astype(np.float64)
        width = (high - low) * (1 + 2 * MARGIN)
        step = np.maximum(width, NARROW) / LEVELS
        minimum = low - MARGIN * (high - low)
        holds_zero = (minimum <= 0) & (high >= 0)  # the vector of a blank text, which has no direction
        minimum = np.where(holds_zero, np.round(minimum / step) * step, minimum)
        return cls(tuple(minimum.tolist()), tuple(step.tolist()))


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


Side = Literal["query", "document"]

ABOUT = "__embrew__"
MANIFEST = f"{ABOUT}/vectors.json"
REJECTS = f"{ABOUT}/rejects.jsonl"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One corpus, one output folder, one way to encode.

    Attributes:
        input: a `.jsonl`, `.json`, `.csv`, `.tsv`, `.txt` (all may be `.gz`) or `.parquet` file, a folder of them, a
            folder of `datasets.save_to_disk`, or a BEIR folder; a path, or a URL (`s3://`, `gs://`, `hf://`, `file://`).
        output: the folder of shards; a path, or a URL.
        prompt_name: prompt and length limit of documents or of queries.
        precision: data type of the stored vectors; `int8` needs 1/4 of the bytes of `float32`, `binary` (signs) 1/32.
        truncate_dim: number of leading dimensions to keep; default: all.
        num_layers: number of layers to run; default: all.
        batch_tokens: tokens per batch, with padding; default: 16384, on a CPU 2048.
        shard_rows: rows per shard; a killed run loses at most one shard.
        id_column: column of the ids; default: `_id` or `id`, else the number of the line or row.
        text_column: column of the texts; default: `text`, after `title` where there is one.
        on_bad_rows: `strict` stops at a row that cannot be encoded; `skip` writes it to `__embrew__/rejects.jsonl` and
            continues.
        max_reject_rate: with `skip`, stop when more than this share of the rows is bad, or of 100 rows if there are
            fewer; 0: at the first.
    """

    input: str | Place
    output: str | Place
    prompt_name: Side = "document"
    precision: Precision = "float32"
    truncate_dim: int | None = None
    num_layers: int | None = None
    batch_tokens: int | None = None
    shard_rows: int = 32_768
    id_column: str | None = None
    text_column: str | None = None
    on_bad_rows: OnBadRows = "strict"
    max_reject_rate: float = MAX_RATE

    def __post_init__(self) -> None:
        for name, allowed in (("prompt_name", Side), ("precision", Precision), ("on_bad_rows", OnBadRows)):
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(f"{name}={getattr(self, name)!r}; choose from {', '.join(get_args(allowed))}")
        for name in ("shard_rows", "truncate_dim", "num_layers", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}; give 1 or more")
        if not 0 <= self.max_reject_rate <= 1:
            raise ValueError(f"max_reject_rate={self.max_reject_rate}; give a share from 0 to 1")

    @property
    def folder(self) -> Place:
        """`output` as a place."""
        return place_of(self.output)

    @property
    def local_folder(self) -> Path:
        """`output` as a folder of this machine.

        Raises:
            ValueError: it is in a store.
        """
        folder = self.folder
        if not isinstance(folder, Path):
            raise ValueError(
                f"{folder} is in a store, which cannot replace a folder in one step; update a folder of this machine, "
                "or encode into a new one"
            )
        return folder
