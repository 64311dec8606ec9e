"""What an embedding objective embeds: how rows become texts, and texts embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from embrew.modeling.encoder import Encoder
from embrew.modeling.text.tokens import Tokens
from embrew.objectives.rows import RowsKind, instructions_of, text_keys, usable

Embed = Callable[[Encoder, Tokens], Tensor]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The texts of a batch by role, and how they are embedded.

    Embeddings may be written into further texts as vectors (`prompted`, `prompt_vectors`).

    Attributes:
        embed: from encoder and tokens to embeddings `(..., rows, hidden)`.
    """

    embed: Embed = Encoder.__call__

    @property
    def rows_kind(self) -> RowsKind:
        """The kind of rows that is read."""
        return "text"

    @property
    def has_prompt_vectors(self) -> bool:
        """Whether embeddings may be written into further texts."""
        return False

    def prepare(self, dataset: Dataset) -> Dataset:
        """Drop rows that cannot be used, add columns."""
        return dataset

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Rows to a batch, as `Objective.collate`."""
        raise NotImplementedError(f"{type(self).__name__} has no collate")

    def complete(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with the parts for which other processes are asked; called once per step."""
        return batch

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """What is embedded, by role."""
        raise NotImplementedError(f"{type(self).__name__} has no texts")

    def prompted(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """What is embedded after `texts`: texts with SOFT positions, without their vectors; there may be no rows."""
        return {}

    def prompt_vectors(self, encoder: Encoder, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> Tensor:
        """Vectors `(vectors, hidden)` for the SOFT positions of `prompted`, made of the embeddings of `texts`."""
        raise NotImplementedError(f"{type(self).__name__} has no prompts with vectors")


@dataclass(frozen=True, kw_only=True)
class RepeatedTexts(Inputs):
    """Every text twice, as `query` and as `document`: dropout makes the two embeddings different (SimCSE)."""

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Tokens under the encoder's default prompt, and keys that are equal where texts are equal."""
        texts = [row["text"] for row in rows]
        asked = encoder.prompts.get(encoder.default_prompt_name or "", "")
        tokens = Tokens.pad(encoder.template.rows(texts, instruction=asked, max_length=encoder.max_seq_length))
        return {"query": tokens, "query_keys": text_keys(texts), "document_keys": text_keys(texts)}

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """The same tokens in both roles."""
        return {"query": batch["query"], "document": batch["query"]}


@dataclass(frozen=True, kw_only=True)
class ScoredPairs(Inputs):
    """Pairs of texts with a score, as one role `text`: all first texts, then all second ones."""

    @property
    def rows_kind(self) -> RowsKind:
        """Sentence1, sentence2, score."""
        return "scored"

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Tokens, keys of the texts, and the scores as `grades` `(rows,)`."""
        texts = [row[side] for side in ("sentence1", "sentence2") for row in rows]
        return {
            "text": Tokens.pad(encoder.template.rows(texts, max_length=encoder.max_seq_length)),
            "text_keys": text_keys(texts),
            "grades": torch.tensor([float(row["score"]) for row in rows]),
        }

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """`text`."""
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
        """Query, positive, negatives."""
        return "pairs"

    def prepare(self, dataset: Dataset) -> Dataset:
        """Leave out rows without negatives, where each needs some.

        Raises:
            ValueError: none has any.
        """
        if not self.with_negatives:
            return dataset
        keep = [i for i, negatives in enumerate(dataset["negatives"]) if negatives]
        none = f"none of {len(dataset)} rows has negatives; set in_batch_negatives: true"
        return usable(dataset, keep, otherwise=none, left_out="contrastive leaves out {} of {} rows without negatives")

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Tokens by role, keys of their texts, and `owners`: the row of each document.

        With `scores` also `teacher` and `candidates`, `(batch, 1 + most negatives)`: each query's scores, and the
        indices of its own documents; what a row lacks is −inf and 0.
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
        """`query` and `document`."""
        return {"query": batch["query"], "document": batch["document"]}


def teacher_scores(rows: Sequence[dict[str, Any]], counts: Sequence[int]) -> dict[str, Tensor]:
    """`teacher` and `candidates` of `Pairs.collate`, of rows with `counts` negatives.

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
