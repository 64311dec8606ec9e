"""Hashes of texts: rows that hold certain texts, and rows that are set aside."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.data.formats import Values

if TYPE_CHECKING:
    from datasets import Dataset

RESERVED = "reserved"
"""Column that `load` adds for rows with a reserved text."""
TEXTS = ("text", "query", "positive", "negatives", "sentence1", "sentence2")
"""Text columns of canonical training rows."""


def normalised(text: str) -> str:
    """Return the form in which texts are compared: Unicode NFC, single blanks, lower case."""
    return " ".join(unicodedata.normalize("NFC", text).lower().split())


def fingerprints(texts: Iterable[str]) -> np.ndarray:
    """Return 64-bit hashes of normalised texts, `(texts,)`: 10⁶ × 10⁶ have a false match with probability 10⁻⁷."""
    hashes = (hashlib.blake2b(normalised(text).encode(), digest_size=8).digest() for text in texts)
    return np.fromiter((int.from_bytes(digest, "little") for digest in hashes), dtype=np.uint64)


def has_reserved(row: Values, reserved: Collection[int]) -> bool:
    """Return whether a canonical row contains a text with one of these fingerprints."""
    _, texts = flatten([row[column] for column in TEXTS if column in row])
    return any(mark in reserved for mark in fingerprints(texts).tolist())


def flatten(column: list[Any]) -> tuple[np.ndarray, list[str]]:
    """Return the texts of a column and the index of each one's row; lists are flattened, missing values left out."""
    listed = [value if isinstance(value, list) else [] if value is None else [value] for value in column]
    row_indices = np.repeat(np.arange(len(listed)), [len(texts) for texts in listed])
    return row_indices, [text for texts in listed for text in texts]


ONE_IN = 20  # texts; more would take too much of a small data set


def set_aside(parts: Sequence[Dataset], count: int) -> tuple[list[Dataset], list[Values]]:
    """Split rows with `count` different texts off data sets.

    The texts are those with the smallest fingerprints (`fingerprints`), so that neither order, nor seed, nor
    number of processes matters. A row's text is its `text`, or its `query`; all rows of a chosen text are removed, of
    all data sets, and the first of them is returned. At most one text in 20 is chosen; of fewer than 40 texts none.

    Args:
        parts: data sets with the same columns.
        count: number of texts; 0: none.

    Returns:
        The data sets without these rows, and one row per text, in the order of their fingerprints; none where the data
        sets are too small, and then no row is removed.

    Raises:
        ValueError: all rows of a data set would be set aside.
    """
    column = "text" if "text" in parts[0].column_names else "query"
    marks = [fingerprints(part[column]) for part in parts] if count else []
    unique = np.unique(np.concatenate(marks)) if marks else np.empty(0, dtype=np.uint64)
    chosen = unique[: min(count, len(unique) // ONE_IN)]
    if len(chosen) < 2:
        return list(parts), []
    left: list[Dataset] = []
    rows: dict[int, Values] = {}
    for number, (part, part_marks) in enumerate(zip(parts, marks, strict=True)):
        is_chosen = np.isin(part_marks, chosen)
        if is_chosen.all():
            raise ValueError(
                f"all {len(part)} rows of data set {number} hold texts that would be set aside; leave it out, or set "
                "objective.held_out: 0"
            )
        for index in np.flatnonzero(is_chosen).tolist():
            rows.setdefault(int(part_marks[index]), part[index])
        left.append(part.select(np.flatnonzero(~is_chosen)))
    return left, [rows[int(mark)] for mark in chosen]
