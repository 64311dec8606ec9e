"""Objectives whose loss depends on embeddings only, and their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from embrew.distributed import gather
from embrew.encoder import Encoder
from embrew.losses.contrastive import spread_out
from embrew.methods.base import (
    Batch,
    DataRow,
    NotNegative,
    Objective,
    RowsKind,
    are_equal,
    blocks_of,
    instructions_of,
    rows_with_negatives,
    usable,
)
from embrew.model.batching import embed_by_length, embed_together
from embrew.text.tokens import Tokens

if TYPE_CHECKING:
    from datasets import Dataset

Embed = Callable[[Encoder, Tokens], Tensor]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The texts of a batch by role, and how they are embedded.

    Attributes:
        rows_kind: kind of the rows that `collate` reads.
        roles: names of the texts to embed in a batch; one that it lacks is left out.
        embed: function of encoder and tokens that returns embeddings `(..., rows, hidden)`.
        vectors: whether embeddings may be inserted into further texts (`prompted`, `prompt_vectors`).
    """

    rows_kind: ClassVar[RowsKind] = "text"
    roles: ClassVar[tuple[str, ...]] = ("query", "document")
    embed: Embed = Encoder.__call__
    vectors: bool = False

    def prepare(self, dataset: Dataset) -> Dataset:
        """Return the data set without rows that cannot be used, with further columns."""
        return dataset

    def check_rows(self, dataset: Dataset) -> None:
        """Raise where the texts of a stage are equal, so that a row has no other candidate than its own positive."""

    def strings(self, rows: Sequence[DataRow]) -> dict[str, list[str]]:
        """Return the texts of rows by role, as `collate` orders them."""
        raise NotImplementedError(f"{type(self).__name__} has no list of its texts")

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int) -> Batch:
        """Convert rows to a batch, as `Objective.collate`."""
        raise NotImplementedError(f"{type(self).__name__} has no collate")

    def complete(self, encoder: Encoder, batch: Batch) -> Batch:
        """Add the parts of a batch that depend on the batches of other processes; called once per step."""
        return batch

    def texts(self, batch: Batch) -> dict[str, Tokens]:
        """Return the texts to embed, by role."""
        return {role: batch[role] for role in self.roles if role in batch}

    def embed_all(
        self, encoder: Encoder, batch: Batch, embed: Callable[[str, Tokens], Tensor]
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Return embeddings by role, each `(..., rows, hidden)`, and the roles that were embedded after the others.

        Args:
            encoder: embeds texts.
            batch: batch as `complete` returned it.
            embed: function of a role and its tokens.
        """
        embeddings = {role: embed(role, tokens) for role, tokens in self.texts(batch).items()}
        prompted = self.prompted(batch)
        if prompted:
            table = self.prompt_vectors(encoder, embeddings, batch)
            for role, tokens in prompted.items():  # of no texts: the inputs of `table` get a gradient of 0
                none = table[:0] + 0.0 * table.sum()
                embeddings[role] = embed(role, tokens.with_soft(table)) if len(tokens) else none
        return embeddings, list(prompted)

    def prompted(self, batch: Batch) -> dict[str, Tokens]:
        """Return texts to embed after `texts`, with SOFT positions and without their vectors; there may be no rows."""
        return {}

    def prompt_vectors(self, encoder: Encoder, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        """Return vectors `(vectors, hidden)` for the SOFT positions of `prompted`, from the embeddings of `texts`."""
        raise NotImplementedError(f"{type(self).__name__} has no prompts with vectors")


@dataclass(frozen=True, kw_only=True)
class RepeatedTexts(Inputs):
    """Each text twice, as `query` and as `document`; dropout makes the two embeddings differ (SimCSE)."""

    def check_rows(self, dataset: Dataset) -> None:
        """Raise where all texts are equal."""
        check_differ("texts", dataset["text"])

    def strings(self, rows: Sequence[DataRow]) -> dict[str, list[str]]:
        """Return the texts, twice."""
        return {role: [row["text"] for row in rows] for role in ("query", "document")}

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int) -> Batch:
        """Return tokens under the encoder's default prompt, and keys that are equal where texts are equal."""
        texts = self.strings(rows)["query"]
        tokens, keys = plain_tokens(texts, encoder), text_keys(texts)
        return {"query": tokens, "document": tokens, "query_keys": keys, "document_keys": keys}


@dataclass(frozen=True, kw_only=True)
class ScoredPairs(Inputs):
    """Pairs of texts with a score, as one role `text`: all first texts, then all second ones."""

    rows_kind = "scored"
    roles = ("text",)

    def strings(self, rows: Sequence[DataRow]) -> dict[str, list[str]]:
        """Return all first texts, then all second ones."""
        return {"text": [row[side] for side in ("sentence1", "sentence2") for row in rows]}

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int) -> Batch:
        """Return tokens, keys, the scores as `grades` `(rows,)`, and the texts of pairs whose score is not 0."""
        texts = self.strings(rows)["text"]
        grades = torch.tensor([float(row["score"]) for row in rows])
        return {
            "text": Tokens.pad(encoder.template.rows(texts, max_length=encoder.max_seq_length)),
            "text_keys": text_keys(texts),
            "grades": grades,
            "graded": np.flatnonzero(grades.repeat(2)),
        }


@dataclass(frozen=True, kw_only=True)
class Pairs(Inputs):
    """Pairs with hard negatives: `query`, and `document`, which holds all positives, then all negatives.

    Attributes:
        with_negatives: leave out rows without negatives.
        scores: collate a teacher's scores of a query's own documents.
    """

    rows_kind = "pairs"
    with_negatives: bool = False
    scores: bool = False

    def prepare(self, dataset: Dataset) -> Dataset:
        """Leave out rows without negatives, if `with_negatives`.

        Raises:
            ValueError: no row has negatives.
        """
        if not self.with_negatives:
            return dataset
        keep = rows_with_negatives(dataset)
        none = f"none of {len(dataset)} rows has negatives; set in_batch_negatives: true"
        return usable(dataset, keep, otherwise=none, left_out="contrastive leaves out {} of {} rows without negatives")

    def check_rows(self, dataset: Dataset) -> None:
        """Raise where all documents are equal, or all queries that have no negatives."""
        has_negatives = "negatives" in dataset.column_names
        blocks = blocks_of(dataset, "negatives") if has_negatives else iter(())
        negatives = (text for block in blocks for texts in block for text in texts or ())
        check_differ("documents", chain(dataset["positive"], negatives))
        if not (has_negatives and any(map(any, blocks_of(dataset, "negatives")))):
            check_differ("queries", dataset["query"])

    def strings(self, rows: Sequence[DataRow]) -> dict[str, list[str]]:
        """Return queries; all positives, then all negatives."""
        negatives = [text for row in rows for text in row.get("negatives") or []]
        return {
            "query": [row["query"] for row in rows],
            "document": [row["positive"] for row in rows] + negatives,
        }

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int) -> Batch:
        """Return tokens by role, keys of their texts, and `query_indices`: the query of each document.

        With `scores` also `teacher` and `candidates`, `(batch, 1 + largest number of negatives)`: the scores of each
        query's own documents, padded with −inf, and the indices of these documents, padded with 0.
        """
        lengths = encoder.max_length
        queries, documents = self.strings(rows).values()
        counts = [len(row.get("negatives") or []) for row in rows]
        query_indices = [*range(len(rows)), *(i for i, count in enumerate(counts) for _ in range(count))]
        template, instructions = encoder.template, instructions_of(rows, encoder)
        row_instructions = instructions_of(rows, encoder, "document")
        document_instructions = [row_instructions[index] for index in query_indices]
        batch = {
            "query": Tokens.pad(template.rows(queries, instruction=instructions, max_length=lengths["query"])),
            "document": Tokens.pad(
                template.rows(documents, instruction=document_instructions, max_length=lengths["document"])
            ),
            "query_keys": text_keys(queries),
            "document_keys": text_keys(documents),
            "query_indices": torch.tensor(query_indices),
        }
        return {**batch, **teacher_scores(rows, counts)} if self.scores else batch


def check_differ(kind: str, texts: Iterable[str]) -> None:
    """Raise if all texts are equal; their kind, such as `queries`, is for the message."""
    if are_equal(texts):
        raise ValueError(f"all {kind} are equal, so there is nothing to tell apart; give rows with different {kind}")


def teacher_scores(rows: Sequence[DataRow], counts: Sequence[int]) -> dict[str, Tensor]:
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


@dataclass(kw_only=True)
class EmbeddingObjective(Objective):
    """An objective whose loss (`loss`) depends on embeddings only: those of its `inputs`.

    Its batches can be gradient-cached and gathered, and it can be nested in another objective.

    Attributes:
        spread_weight: weight of an additional term that spreads embeddings out: the mean of `spread_out` over queries
            and over documents (or texts) of all processes; with several layers, of the last one.
    """

    spread_weight: NotNegative = 0.0

    @property
    def inputs(self) -> Inputs:
        """The texts of a batch, and how they are embedded."""
        raise NotImplementedError(f"{type(self).__name__} has no inputs")

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return the loss of embeddings, by the roles of `inputs`, and parts as `Objective.__call__` does."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def total(self, embeddings: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return the loss with the term of `spread_weight`, and parts."""
        parts = self.loss(embeddings, batch)
        if not self.spread_weight:
            return parts
        last = {role: vectors if vectors.ndim == 2 else vectors[-1] for role, vectors in embeddings.items()}
        keys = {role: batch[f"{role}_keys"] for role in last if f"{role}_keys" in batch}
        spread = torch.stack([spread_out(gather(last[role]), gather(keys[role])) for role in keys]).mean()
        return {**parts, "loss": parts["loss"] + self.spread_weight * spread, "spread": spread.detach()}

    @property
    def rows_kind(self) -> RowsKind:
        """The kind of rows of the inputs."""
        return self.inputs.rows_kind

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Return the data set without rows that the inputs cannot use."""
        return self.inputs.prepare(dataset)

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Convert rows to a batch of the inputs."""
        return self.inputs.collate(rows, encoder, seed=seed)

    def passes(self, encoder: Encoder, batch: Batch) -> tuple[list[Tokens], list[Tokens]]:
        """Return the texts that are embedded."""
        batch = self.inputs.complete(encoder, batch)
        return [*self.inputs.texts(batch).values(), *self.inputs.prompted(batch).values()], []

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Tensor]:
        """Embed the texts of a batch and return the loss of the embeddings."""
        inputs = self.inputs
        batch, embed = inputs.complete(encoder, batch), partial(inputs.embed, encoder)
        together = embed_together(embed, inputs.texts(batch), encoder.cost)
        embeddings, _ = inputs.embed_all(
            encoder,
            batch,
            lambda role, tokens: together[role] if role in together else embed_by_length(embed, tokens, encoder.cost),
        )
        return self.total(embeddings, batch)


@dataclass(kw_only=True)
class Nested(EmbeddingObjective):
    """An objective that applies the loss of another one several times, to the same texts.

    Attributes:
        base: the objective that is nested.
    """

    base: EmbeddingObjective

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base.spread_weight:
            raise ValueError("base.spread_weight: give spread_weight to the outer objective, which has the texts once")

    @property
    def inputs(self) -> Inputs:
        """The inputs of the base objective."""
        return self.base.inputs

    def check_rows(self, dataset: Dataset) -> None:
        """Check the rows for the base objective."""
        self.base.check_rows(dataset)

    def setup(self, encoder: Encoder) -> None:
        """Set up the base objective."""
        self.base.setup(encoder)

    def num_items(self, batch: Batch) -> dict[str, int]:
        """Return the counts of the base objective."""
        return self.base.num_items(batch)

    def check_layers(self) -> None:
        """Raise if the base inserts embeddings of the last layer into prompts."""
        if self.base.inputs.vectors:
            raise ValueError(
                f"{type(self).__name__} reads every layer, and {type(self.base).__name__} puts embeddings of the last "
                "into prompts; nest it in matryoshka"
            )


def plain_tokens(texts: Sequence[str], encoder: Encoder) -> Tokens:
    """Return texts as `Encoder.encode` reads them: under the default prompt, in its length limit."""
    prompt = encoder.prompts.get(encoder.default_prompt_name or "", "")
    return Tokens.pad(encoder.template.rows(texts, instruction=prompt, max_length=encoder.max_seq_length))


def text_keys(texts: Sequence[str]) -> Tensor:
    """Return hashes of texts, `(texts,)` int64, the same in every process and on every machine."""
    keys = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True) for text in texts]
    return torch.tensor(keys, dtype=torch.long)
