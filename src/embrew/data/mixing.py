"""The order of rows of several data sets: how often each is drawn from, whether batches hold several, instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embrew.data.formats import Values

if TYPE_CHECKING:
    from datasets import Dataset


def shares(sizes: Sequence[float], *, weights: Sequence[float] | None = None, temperature: float = 1.0) -> list[float]:
    """Return the probability of each data set: ∝ weight, or ∝ size^temperature (1: by size, 0: all equal).

    Examples:
        >>> shares([300, 100])
        [0.75, 0.25]
        >>> shares([300, 100], temperature=0)
        [0.5, 0.5]
        >>> shares([300, 100], weights=[1, 4])
        [0.2, 0.8]
    """
    raw = np.asarray(weights if weights is not None else np.asarray(sizes, dtype=np.float64) ** temperature)
    if not (raw > 0).all() or not np.isfinite(raw).all():
        raise ValueError(f"shares of {list(raw)}; every data set needs a positive weight")
    return [float(share) for share in raw / raw.sum()]


class MixedOrder:
    """Order of the rows of an epoch over concatenated data sets.

    Each block of `block` rows is of one data set, drawn with its probability. If `block` is the global batch, in-batch
    negatives are of the query's own data set; with 1, batches are mixed. A data set is shuffled again when it is used
    up; remaining rows that do not fill a block are skipped until then, so that no block has a row twice.

    Order and instructions depend on seed and epoch only: they are the same in every process and in a resumed run.

    Attributes:
        sizes: number of rows of each data set.
        probabilities: probability of each data set.
        block: number of consecutive rows of one data set.
        seed: random seed of the order.
        instructions: instructions of each data set, of which a block has one, drawn uniformly; empty where no data set
            has any. Row r with instruction n is the number r + n · rows, which `InstructedRows` reads.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        probabilities: Sequence[float],
        *,
        block: int,
        seed: int,
        instructions: Sequence[Sequence[str]] = (),
    ) -> None:
        small = [size for size in sizes if size < block]
        if small:
            raise ValueError(
                f"a data set of {small[0]} rows does not fill a batch of {block}; lower batch.size, leave the data set "
                "out, or let batches hold several data sets (mix.batches: mixed)"
            )
        self.sizes, self.probabilities, self.block, self.seed = list(sizes), list(probabilities), block, seed
        self.instructions = [list(wordings) for wordings in instructions] if any(instructions) else []
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of rows: the complete blocks that the rows of all data sets fill."""
        return sum(self.sizes) // self.block * self.block

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng([self.seed, self.epoch])
        starts = np.cumsum([0, *self.sizes[:-1]])
        streams = [_blocks(size, self.block, generator) for size in self.sizes]
        wordings = np.random.default_rng([self.seed, self.epoch, 1])
        for chosen in generator.choice(len(self.sizes), size=len(self) // self.block, p=self.probabilities):
            drawn = wordings.integers(max(len(self.instructions[chosen]), 1)) if self.instructions else 0
            for row in next(streams[chosen]):
                yield int(starts[chosen] + row + drawn * sum(self.sizes))


def _blocks(size: int, block: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    while True:
        order = generator.permutation(size)
        for start in range(0, size - block + 1, block):
            yield order[start : start + block]


class InstructedRows:
    """Rows of concatenated data sets, with the instruction that a `MixedOrder` drew in place of their own.

    Documents that have an instruction get the same.

    Args:
        rows: rows of all data sets.
        order: sizes and instructions of the data sets; without instructions, rows keep theirs.
    """

    def __init__(self, rows: Dataset, order: MixedOrder) -> None:
        self.rows, self.instructions, self.ends = rows, order.instructions, np.cumsum(order.sizes)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __getitem__(self, number: int) -> Values:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Values]:
        """Return the rows of several numbers of a `MixedOrder`."""
        indices = [number % len(self.rows) for number in numbers]
        rows = self.rows.__getitems__(indices)
        instructed = []
        for row, index, number in zip(rows, indices, numbers, strict=True):
            wordings = self.instructions[int(np.searchsorted(self.ends, index, side="right"))]
            columns = [name for name in ("instruction", "document_instruction") if row.get(name) is not None]
            drawn = wordings[number // len(self.rows)] if wordings else None
            instructed.append({**row, **dict.fromkeys(columns, drawn)} if wordings else row)
        return instructed
