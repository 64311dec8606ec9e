"""Several wordings of a data set's instruction: each batch has one of them, drawn by seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from embrew.data.mixing import MixedOrder


class InstructedOrder:
    """The rows of a `MixedOrder`, each with the number of an instruction of its data set.

    A block of rows, which is a batch where batches are of one data set, has one instruction, drawn uniformly. The draw
    depends on seed, epoch and the block's number only: it is the same in every process and in a resumed run.

    Row r with instruction n is the number r + n · rows, which `InstructedRows` reads.
    """

    def __init__(self, order: MixedOrder) -> None:
        self.order = order

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.order.set_epoch(epoch)

    def __len__(self) -> int:
        """Number of rows of an epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        order = self.order
        generator = np.random.default_rng([order.seed, order.epoch, 1])
        ends, rows = np.cumsum(order.sizes), sum(order.sizes)
        drawn = 0
        for number, row in enumerate(order):
            if number % order.block == 0:
                several = order.instructions[int(np.searchsorted(ends, row, side="right"))]
                drawn = int(generator.integers(max(len(several), 1)))
            yield row + drawn * rows


class InstructedRows:
    """Rows of concatenated data sets, with the instruction that an `InstructedOrder` drew in place of their own.

    Documents that have an instruction get the same.

    Args:
        rows: of all data sets.
        order: their sizes, and the instructions of each; none: rows keep theirs.
    """

    def __init__(self, rows: Dataset, order: MixedOrder) -> None:
        self.rows, self.instructions, self.ends = rows, order.instructions, np.cumsum(order.sizes)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows of several numbers of an `InstructedOrder`."""
        places = [number % len(self.rows) for number in numbers]
        some = self.rows.__getitems__(places)
        return [
            self._instructed(row, place, number // len(self.rows))
            for row, place, number in zip(some, places, numbers, strict=True)
        ]

    def _instructed(self, row: dict[str, Any], place: int, drawn: int) -> dict[str, Any]:
        several = self.instructions[int(np.searchsorted(self.ends, place, side="right"))]
        if not several:
            return row
        columns = [name for name in ("instruction", "document_instruction") if row.get(name) is not None]
        return {**row, **dict.fromkeys(columns, several[drawn])}
