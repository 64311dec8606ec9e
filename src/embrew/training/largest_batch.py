"""The largest of some batches of a stage, by which its memory is estimated."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset

from embrew.data.mixing import MixedOrder

BATCHES, ROWS = 64, 4_096  # batches that are compared, at most; rows of all of them, at most
CHARACTERS = 6  # per token at most, of which lengths are compared: longer texts are truncated


class Batch(NamedTuple):
    """Rows of a batch, and the mean size of the batches that it is the largest of, relative to its own."""

    rows: list[dict[str, Any]]
    mean: float


def largest_batch(
    rows: Dataset, size: int, *, max_length: int, order: MixedOrder | None = None, seed: int = 0
) -> Batch:
    """Return the batch with the most characters among some that are drawn as the stage draws them.

    Args:
        rows: of the stage.
        size: of a batch.
        max_length: tokens of a text.
        order: of the rows; None: shuffled.
        seed: of the draw.
    """
    count = max(1, min(BATCHES, ROWS // size))
    if order is None:
        generator = np.random.default_rng(seed)
        drawn = [generator.permutation(len(rows)) for _ in range(-(-count * size // len(rows)))]
        indices = np.concatenate(drawn)[: count * size].tolist()
    else:
        indices = list(islice(order, count * size))
    some = rows.select(indices).to_list()
    lengths = np.array([_characters(row, CHARACTERS * max_length) for row in some])
    batches = [slice(i * size, (i + 1) * size) for i in range(max(1, len(some) // size))]
    sums = [int(lengths[batch].sum()) for batch in batches]
    most = int(np.argmax(sums))
    return Batch(some[batches[most]], float(np.mean(sums)) / max(sums[most], 1))


def _characters(value: Any, limit: int) -> int:
    if isinstance(value, str):
        return min(len(value), limit)
    if isinstance(value, dict):
        return sum(_characters(one, limit) for one in value.values())
    return sum(_characters(one, limit) for one in value) if isinstance(value, list) else 0
