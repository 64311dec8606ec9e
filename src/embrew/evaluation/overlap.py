"""Count training rows that contain a text that a model is evaluated on, by hashes of their texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from embrew.data.fingerprints import TEXTS, fingerprints, flatten
from embrew.settings.validation import shortened

if TYPE_CHECKING:
    from datasets import Dataset

EXAMPLES, WIDTH, BLOCK = 5, 120, 10_000


class Overlap(TypedDict):
    """Training rows that contain a text of one evaluation set: number, share, number by column, and examples."""

    rows: int
    share: float
    columns: dict[str, int]
    examples: list[str]


def hash_texts(sets: Mapping[str, Iterable[str]]) -> dict[str, np.ndarray]:
    """Return sorted hashes of the texts of each evaluation set; empty texts are left out."""
    return {name: np.unique(fingerprints(text for text in texts if text.strip())) for name, texts in sets.items()}


def count_overlaps(rows: Dataset, sets: Mapping[str, np.ndarray]) -> dict[str, Overlap]:
    """Count the training rows that contain a text of each evaluation set, up to case, white space and Unicode form.

    Args:
        rows: canonical rows; one matching text of a list is enough.
        sets: result of `hash_texts`.
    """
    columns = [column for column in TEXTS if column in rows.column_names]
    overlaps: dict[str, Overlap] = {
        name: {"rows": 0, "share": 0.0, "columns": dict.fromkeys(columns, 0), "examples": []} for name in sets
    }
    seen: dict[str, set[int]] = {name: set() for name in sets}
    for block in rows.select_columns(columns).iter(BLOCK):
        size = len(block[columns[0]])
        hits = {name: np.zeros(size, dtype=bool) for name in sets}
        for column in columns:
            row_indices, texts = flatten(block[column])
            hashes = fingerprints(texts)
            for name, reserved in sets.items():
                matches = np.flatnonzero(np.isin(hashes, reserved))
                matching_rows = np.unique(row_indices[matches])
                overlaps[name]["columns"][column] += len(matching_rows)
                hits[name][matching_rows] = True
                for match in matches:
                    if len(overlaps[name]["examples"]) < EXAMPLES and int(hashes[match]) not in seen[name]:
                        seen[name].add(int(hashes[match]))
                        overlaps[name]["examples"].append(shortened(" ".join(texts[match].split()), WIDTH))
        for name in sets:
            overlaps[name]["rows"] += int(hits[name].sum())
    for entry in overlaps.values():
        entry["share"] = entry["rows"] / len(rows)
    return overlaps


def overlap_lines(data: str, rows: int, overlaps: Mapping[str, Overlap]) -> list[str]:
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
