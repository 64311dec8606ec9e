"""Set rows aside that are not trained on, by hashes of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.data.overlap import fingerprints

if TYPE_CHECKING:
    from datasets import Dataset

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
    known = np.unique(np.concatenate(marks)) if marks else np.empty(0, dtype=np.uint64)
    chosen = known[: min(count, len(known) // ONE_IN)]
    if len(chosen) < 2:
        return list(parts), []
    left: list[Dataset] = []
    found: dict[int, dict[str, Any]] = {}
    for number, (part, own) in enumerate(zip(parts, marks, strict=True)):
        taken = np.isin(own, chosen)
        if taken.all():
            raise ValueError(
                f"all {len(part)} rows of data set {number} hold texts that would be set aside; leave it out, or set "
                "objective.held_out: 0"
            )
        for index in np.flatnonzero(taken).tolist():
            found.setdefault(int(own[index]), part[index])
        left.append(part.select(np.flatnonzero(~taken)))
    return left, [found[int(mark)] for mark in chosen]
