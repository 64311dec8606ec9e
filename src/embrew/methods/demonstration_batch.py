"""Parts of a batch with demonstrations: what is known of its rows, what is drawn, and the table of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from embrew.distributed import GlobalRows
from embrew.encoder import Encoder
from embrew.model.contexts import Lead, check_reads, most_samples
from embrew.settings.encoder import Demonstrations
from embrew.text.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class RowsToShow:
    """What is needed of the rows of a batch to use them as demonstrations of each other.

    Attributes:
        seed: seed of the draw.
        facts: `(rows, 5)` int64, on the CPU: of each row the keys of its query and of its positive, the number of its
            data set, and the numbers of vectors of its query and of its passage.
        leads: its instruction as part of a demonstration.
        query_ids: token ids of its query, if queries are text.
        passage_ids: token ids of its passage, if passages are text.
        instructions: the distinct instructions, if these are vectors.
        instruction_of: index of the instruction of each row.
    """

    seed: int
    facts: Tensor
    leads: Sequence[Lead]
    query_ids: Sequence[Sequence[int]] | None = None
    passage_ids: Sequence[Sequence[int]] | None = None
    instructions: Tokens | None = None
    instruction_of: Sequence[int] = ()

    def to(self, device: torch.device | str) -> RowsToShow:
        """Return a copy whose instructions are on another device."""
        return self if self.instructions is None else replace(self, instructions=self.instructions.to(device))


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The demonstrations of the queries of a batch.

    Attributes:
        rows: `(queries, most)` int64: their rows in the global batch; −1 after a query's last.
        here: position of the rows of this process in the global batch.
        prompted: queries after their demonstrations, of those that have some, if these contain vectors; if no query has
            any and weights are sharded, a dummy row.
        prompted_rows: `(prompted,)` int64: indices of these queries.
        some: whether a query has any.
    """

    rows: Tensor
    here: GlobalRows
    some: bool
    prompted: Tokens | None = None
    prompted_rows: Tensor | None = None


class VectorTable(NamedTuple):
    """The order of the vectors in prompts: queries, then passages, then instructions.

    Of queries, and of passages: the embeddings of all rows of the global batch, then the first sampled state of each,
    and so on. Learned vectors: those of the first demonstration's query and passage, then of the second's.

    Attributes:
        settings: how the encoder reads demonstrations.
        per_row: number of vectors in the table for each query, and for each passage.
        total: number of rows in the global batch.
    """

    settings: Demonstrations
    per_row: int
    total: int

    @classmethod
    def of(cls, encoder: Encoder, total: int) -> VectorTable:
        """Return the table of an encoder for a global batch of `total` rows."""
        return cls(check_reads(encoder), 1 + most_samples(encoder), total)

    def example(self, row: int, number: int, slots: Sequence[int]) -> dict[str, list[int]]:
        """Return the indices of the vectors of a row, as demonstration `number` of a query.

        Args:
            row: index in the global batch.
            number: index of the demonstration in the prompt, from 0.
            slots: number of vectors of the row's query, and of its passage.
        """
        if self.settings.learnable is not None:
            return {"query_vectors": [2 * number], "passage_vectors": [2 * number + 1]}
        found: dict[str, list[int]] = {}
        begin = 0
        for part, count in zip(("query", "passage"), slots, strict=True):
            if part in self.settings.vectors:
                found[f"{part}_vectors"] = [begin + sample * self.total + row for sample in [*range(1, count), 0]]
                begin += self.per_row * self.total
        return found

    def instruction(self, number: int) -> int:
        """Return the index of the vector of an instruction."""
        sides = sum(part != "instruction" for part in self.settings.vectors)
        return sides * self.per_row * self.total + number
