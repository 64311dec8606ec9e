"""Objectives whose loss depends on embeddings only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from datasets import Dataset
from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.base import Objective
from embrew.methods.inputs import Inputs
from embrew.methods.rows import RowsKind
from embrew.model.batching import embed_by_length


@dataclass(kw_only=True)
class EmbeddingObjective(Objective):
    """An objective that says what is embedded (`inputs`) and what the loss of embeddings is (`loss`).

    Its batches can be gradient-cached and gathered, and it can be nested in another objective.
    """

    @property
    def inputs(self) -> Inputs:
        """The texts of a batch, and how they are embedded."""
        raise NotImplementedError(f"{type(self).__name__} has no inputs")

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return the loss of embeddings, by the roles of `inputs`, and parts as `Objective.__call__` does."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    @property
    def rows_kind(self) -> RowsKind:
        """The kind of rows of the inputs."""
        return self.inputs.rows_kind

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Return the data set without rows that the inputs cannot use."""
        return self.inputs.prepare(dataset)

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Convert rows to a batch of the inputs."""
        return self.inputs.collate(rows, encoder, seed=seed)

    def embed(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return embeddings by role, each `(..., rows, hidden)`, of a batch that `Inputs.complete` returned."""
        inputs = self.inputs
        embed = partial(embed_by_length, partial(inputs.embed, encoder), cost=encoder.cost)
        found = {role: embed(tokens) for role, tokens in inputs.texts(batch).items()}
        prompted = inputs.prompted(batch)
        if prompted:
            table = inputs.prompt_vectors(encoder, found, batch)
            for role, tokens in prompted.items():
                found[role] = embed(tokens.with_soft(table)) if len(tokens) else no_embeddings(table)
        return found

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Embed the texts of a batch and return the loss of the embeddings."""
        batch = self.inputs.complete(encoder, batch)
        return self.loss(self.embed(encoder, batch), batch)


def no_embeddings(table: Tensor) -> Tensor:
    """Return embeddings of no texts, `(0, hidden)`, through which the inputs of `table` get a gradient of 0."""
    return table[:0] + 0.0 * table.sum()
