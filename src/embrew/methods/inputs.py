"""Inputs of embedding objectives: from rows to texts, and from texts to embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.rows import RowsKind, instructions_of, text_keys, usable
from embrew.text.tokens import Tokens

Embed = Callable[[Encoder, Tokens], Tensor]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The texts of a batch by role, and how they are embedded.

    Embeddings may be inserted into further texts as vectors (`prompted`, `prompt_vectors`).

    Attributes:
        embed: function of encoder and tokens that returns embeddings `(..., rows, hidden)`.
    """

    embed: Embed = Encoder.__call__

    @property
    def rows_kind(self) -> RowsKind:
        """The kind of rows that `collate` reads."""
        return "text"

    @property
    def has_prompt_vectors(self) -> bool:
        """Whether embeddings may be inserted into further texts."""
        return False

    def prepare(self, dataset: Dataset) -> Dataset:
        """Return the data set without rows that cannot be used, with further columns."""
        return dataset

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Convert rows to a batch, as `Objective.collate`."""
        raise NotImplementedError(f"{type(self).__name__} has no collate")

    def complete(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the parts of a batch that depend on the batches of other processes; called once per step."""
        return batch

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """Return the texts to embed, by role."""
        raise NotImplementedError(f"{type(self).__name__} has no texts")

    def prompted(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """Return texts to embed after `texts`, with SOFT positions and without their vectors; there may be no rows."""
        return {}

    def prompt_vectors(self, encoder: Encoder, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> Tensor:
        """Return vectors `(vectors, hidden)` for the SOFT positions of `prompted`, from the embeddings of `texts`."""
        raise NotImplementedError(f"{type(self).__name__} has no prompts with vectors")


@dataclass(frozen=True, kw_only=True)
class RepeatedTexts(Inputs):
    """Each text twice, as `query` and as `document`; dropout makes the two embeddings differ (SimCSE)."""

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Return tokens under the encoder's default prompt, and keys that are equal where texts are equal."""
        texts = [row["text"] for row in rows]
        asked = encoder.prompts.get(encoder.default_prompt_name or "", "")
        tokens = Tokens.pad(encoder.template.rows(texts, instruction=asked, max_length=encoder.max_seq_length))
        return {"query": tokens, "query_keys": text_keys(texts), "document_keys": text_keys(texts)}

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """Return the same tokens in both roles."""
        return {"query": batch["query"], "document": batch["query"]}


@dataclass(frozen=True, kw_only=True)
class ScoredPairs(Inputs):
    """Pairs of texts with a score, as one role `text`: all first texts, then all second ones."""

    @property
    def rows_kind(self) -> RowsKind:
        """Rows of sentence1, sentence2, score."""
        return "scored"

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Return tokens, keys, the scores as `grades` `(rows,)`, and the texts of pairs whose score is not 0."""
        texts = [row[side] for side in ("sentence1", "sentence2") for row in rows]
        grades = torch.tensor([float(row["score"]) for row in rows])
        return {
            "text": Tokens.pad(encoder.template.rows(texts, max_length=encoder.max_seq_length)),
            "text_keys": text_keys(texts),
            "grades": grades,
            "graded": np.flatnonzero(grades.repeat(2)),
        }

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """Return the role `text`."""
        return {"text": batch["text"]}


@dataclass(frozen=True, kw_only=True)
class Pairs(Inputs):
    """Pairs with hard negatives: `query`, and `document`, which holds all positives, then all negatives.

    Attributes:
        with_negatives: leave out rows without negatives.
        scores: collate a teacher's scores of a query's own documents.
    """

    with_negatives: bool = False
    scores: bool = False

    @property
    def rows_kind(self) -> RowsKind:
        """Rows of query, positive, negatives."""
        return "pairs"

    def prepare(self, dataset: Dataset) -> Dataset:
        """Leave out rows without negatives, if `with_negatives`.

        Raises:
            ValueError: no row has negatives.
        """
        if not self.with_negatives:
            return dataset
        keep = [i for i, negatives in enumerate(dataset["negatives"]) if negatives]
        none = f"none of {len(dataset)} rows has negatives; set in_batch_negatives: true"
        return usable(dataset, keep, otherwise=none, left_out="contrastive leaves out {} of {} rows without negatives")

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Return tokens by role, keys of their texts, and `owners`: the row of each document.

        With `scores` also `teacher` and `candidates`, `(batch, 1 + most negatives)`: the scores of each query's own
        documents, padded with −inf, and the indices of these documents, padded with 0.
        """
        lengths = encoder.max_length
        queries = [row["query"] for row in rows]
        documents = [row["positive"] for row in rows] + [text for row in rows for text in row.get("negatives") or []]
        counts = [len(row.get("negatives") or []) for row in rows]
        owners = [*range(len(rows)), *(i for i, count in enumerate(counts) for _ in range(count))]
        asked, shown = instructions_of(rows, encoder, "query"), instructions_of(rows, encoder, "document")
        shown = [shown[i] for i in owners]
        batch = {
            "query": Tokens.pad(encoder.template.rows(queries, instruction=asked, max_length=lengths["query"])),
            "document": Tokens.pad(encoder.template.rows(documents, instruction=shown, max_length=lengths["document"])),
            "query_keys": text_keys(queries),
            "document_keys": text_keys(documents),
            "owners": torch.tensor(owners),
        }
        return {**batch, **teacher_scores(rows, counts)} if self.scores else batch

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """Return the roles `query` and `document`."""
        return {"query": batch["query"], "document": batch["document"]}


def teacher_scores(rows: Sequence[dict[str, Any]], counts: Sequence[int]) -> dict[str, Tensor]:
    """Return `teacher` and `candidates` of `Pairs.collate` for rows with `counts` negatives.

    Raises:
        ValueError: a row has no scores.
    """
    without = [row for row in rows if row.get("scores") is None]
    if without:
        raise ValueError(
            f"distillation_weight needs a teacher's scores; the pair of query {without[0]['query'][:60]!r} has none: "
            "give a column scores (the positive's, then the negatives'), or set distillation_weight: 0"
        )
    teacher = torch.full((len(rows), 1 + max(counts)), float("-inf"))
    candidates = torch.zeros(teacher.shape, dtype=torch.long)
    begin = len(rows)
    for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
        teacher[i, : 1 + count] = torch.tensor(row["scores"])
        candidates[i, : 1 + count] = torch.tensor([i, *range(begin, begin + count)])
        begin += count
    return {"teacher": teacher, "candidates": candidates}
