"""Find training rows that contain a text that a model is evaluated on, and set rows aside, by hashes of their texts."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset

RESERVED = "reserved"
"""Column that `load` adds for rows with a reserved text."""
TEXTS = ("text", "query", "positive", "negatives", "sentence1", "sentence2")
"""Text columns of canonical training rows."""
EXAMPLES, WIDTH, BLOCK = 5, 120, 10_000


class Overlap(TypedDict):
    """Training rows that contain a text of one evaluation set: number, share, number by column, and examples."""

    rows: int
    share: float
    columns: dict[str, int]
    examples: list[str]


def normalised(text: str) -> str:
    """Return the form in which texts are compared: Unicode NFC, single blanks, lower case."""
    return " ".join(unicodedata.normalize("NFC", text).lower().split())


def fingerprints(texts: Iterable[str]) -> np.ndarray:
    """Return 64-bit hashes of normalised texts, `(texts,)`: 10⁶ × 10⁶ have a false match with probability 10⁻⁷."""
    hashes = (hashlib.blake2b(normalised(text).encode(), digest_size=8).digest() for text in texts)
    return np.fromiter((int.from_bytes(digest, "little") for digest in hashes), dtype=np.uint64)


def known_texts(sets: Mapping[str, Iterable[str]]) -> dict[str, np.ndarray]:
    """Return sorted hashes of the texts of each evaluation set; empty texts are left out."""
    return {name: np.unique(fingerprints(text for text in texts if text.strip())) for name, texts in sets.items()}


def overlap(rows: Dataset, sets: Mapping[str, np.ndarray]) -> dict[str, Overlap]:
    """Count the training rows that contain a text of each evaluation set, up to case, white space and Unicode form.

    Args:
        rows: canonical rows; one matching text of a list is enough.
        sets: result of `known_texts`.
    """
    columns = [column for column in TEXTS if column in rows.column_names]
    overlaps: dict[str, Overlap] = {
        name: {"rows": 0, "share": 0.0, "columns": dict.fromkeys(columns, 0), "examples": []} for name in sets
    }
    seen: dict[str, set[int]] = {name: set() for name in sets}
    for block in rows.select_columns(columns).iter(BLOCK):
        size = len(block[columns[0]])
        hit = {name: np.zeros(size, dtype=bool) for name in sets}
        for column in columns:
            places, texts = _flat(block[column])
            hashes = fingerprints(texts)
            for name, reserved in sets.items():
                matches = np.flatnonzero(np.isin(hashes, reserved))
                here = np.unique(places[matches])
                overlaps[name]["columns"][column] += len(here)
                hit[name][here] = True
                for match in matches:
                    if len(overlaps[name]["examples"]) < EXAMPLES and int(hashes[match]) not in seen[name]:
                        seen[name].add(int(hashes[match]))
                        overlaps[name]["examples"].append(_short(texts[match]))
        for name in sets:
            overlaps[name]["rows"] += int(hit[name].sum())
    for entry in overlaps.values():
        entry["share"] = entry["rows"] / len(rows)
    return overlaps


def holds(row: Mapping[str, Any], reserved: Collection[int]) -> bool:
    """Return whether a canonical row contains a text with one of these fingerprints."""
    _, texts = _flat([row[column] for column in TEXTS if column in row])
    return any(mark in reserved for mark in fingerprints(texts).tolist())


def in_words(data: str, rows: int, overlaps: Mapping[str, Overlap]) -> list[str]:
    """Return one line per evaluation set that shares texts with a training set; one line if none does."""
    lines = []
    for name, entry in overlaps.items():
        if entry["rows"]:
            columns = ", ".join(f"{column} {count:,}" for column, count in entry["columns"].items() if count)
            lines.append(
                f"{entry['rows']:,} of {rows:,} rows of {data} ({entry['share']:.2%}) hold a text of {name} "
                f"({columns}), for example {entry['examples'][0]!r}"
            )
    return lines or [f"no row of {data} ({rows:,}) holds a text of {', '.join(overlaps)}"]


def _flat(column: list[Any]) -> tuple[np.ndarray, list[str]]:
    """Return the texts of a column and the index of each one's row; lists are flattened, missing values left out."""
    listed = [value if isinstance(value, list) else [] if value is None else [value] for value in column]
    places = np.repeat(np.arange(len(listed)), [len(texts) for texts in listed])
    return places, [text for texts in listed for text in texts]


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= WIDTH else flat[: WIDTH - 1] + "…"


ONE_IN = 20  # texts; more would take too much of a small data set


def set_aside(parts: Sequence[Dataset], count: int) -> tuple[list[Dataset], list[dict[str, Any]]]:
    """Split rows with `count` different texts off data sets.

    The texts are those with the smallest fingerprints (`overlap.fingerprints`), so that neither order, nor seed, nor
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
    rows: dict[int, dict[str, Any]] = {}
    for number, (part, own) in enumerate(zip(parts, marks, strict=True)):
        is_chosen = np.isin(own, chosen)
        if is_chosen.all():
            raise ValueError(
                f"all {len(part)} rows of data set {number} hold texts that would be set aside; leave it out, or set "
                "objective.held_out: 0"
            )
        for index in np.flatnonzero(is_chosen).tolist():
            rows.setdefault(int(own[index]), part[index])
        left.append(part.select(np.flatnonzero(~is_chosen)))
    return left, [rows[int(mark)] for mark in chosen]
