"""What a training objective is: settings, a collate, and a call that gives a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from datasets import Dataset
from torch import Tensor, nn

from embrew.modeling.embedding.batching import embed_by_length
from embrew.modeling.encoder import Encoder
from embrew.modeling.text.tokens import Tokens
from embrew.objectives.reductions import UNIT_WEIGHTS, weights_of_units
from embrew.objectives.settings import check_values

RowsKind = Literal["text", "pairs", "scored"]


@dataclass(kw_only=True)
class Objective:
    """One method, one stage. The fields of the dataclass are its settings; it keeps no weights.

    Attributes:
        kind: what a row of its data holds: `text`; `pairs`, that is query, positive, negatives; `scored`, that is
            sentence1, sentence2, score.
    """

    kind: ClassVar[RowsKind] = "text"

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        check_values(type(self), given, words=f"{type(self).__name__}: ")
        self.check_settings()

    def check_settings(self) -> None:
        """Refuse settings that do not go together; what needs an encoder is checked in `setup`."""

    @property
    def rows_kind(self) -> RowsKind:
        """The kind of rows these settings ask for."""
        return self.kind

    def setup(self, encoder: Encoder) -> None:
        """Make the encoder ready for this objective, before the first step; refuse what cannot work."""

    def learned(self, encoder: Encoder) -> dict[str, nn.Parameter]:
        """Parameters that only training needs, by name; they come back as `batch["learned"]`."""
        return {}

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Drop rows that the objective cannot use."""
        return dataset

    def precompute(self, dataset: Dataset, encoder: Encoder, folder: Path | None = None) -> Dataset:
        """Add columns that the encoder, as it is when the stage begins, computes once.

        What takes long is kept in `folder`, where there is one, for a run that is stopped and goes on.
        """
        return dataset

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Rows to a batch, on the CPU.

        Whatever is drawn at random here is drawn from `seed`, which changes with the epoch, and the row: batches are
        made ahead of time, so a global generator would not survive a restart.
        """
        raise NotImplementedError(f"{type(self).__name__} has no collate")

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Numbers of tokens, or rows, of this batch that parts of the loss are means over, by name.

        Such a mean is over an optimiser step: all its micro-batches, of all processes. A loss that compares the rows of
        a batch with each other has no name here: it is the mean of the losses of its micro-batches.
        """
        return {}

    def unit_weights(self, batch: dict[str, Any], device: torch.device) -> Mapping[str, float]:
        """What the loss of one token, or row, is multiplied with, by the names of `counts`.

        The trainer gives them; without, the batch, with those of the other processes, is the whole step.
        """
        given: Mapping[str, float] | None = batch.get(UNIT_WEIGHTS)
        return weights_of_units([self.counts(batch)], device) if given is None else given

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """`loss`, a scalar with gradient, and detached parts worth logging."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")


@dataclass(kw_only=True)
class EmbeddingObjective(Objective):
    """An objective whose loss depends on embeddings only: its batches can be gradient-cached and gathered.

    A method says what is embedded (`texts`) and what the loss of embeddings is (`loss`). Embeddings may go into further
    texts as vectors (`soft`, `chained`).

    Attributes:
        chains: whether there are such texts.
    """

    chains: ClassVar[bool] = False

    def arranged(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with what is decided when it is used, where other processes can be asked; called once a step."""
        return batch

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """What is embedded, by role."""
        raise NotImplementedError(f"{type(self).__name__} has no texts")

    def embed_rows(self, encoder: Encoder, tokens: Tokens) -> Tensor:
        """Embeddings of some rows: `(..., rows, hidden)`."""
        vectors: Tensor = encoder(tokens)
        return vectors

    def chained(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """What is embedded after `texts`: texts with SOFT positions, without their vectors; there may be no rows."""
        return {}

    def soft(self, encoder: Encoder, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> Tensor:
        """Vectors `(vectors, hidden)` for the SOFT positions of `chained`, made of the embeddings of `texts`."""
        raise NotImplementedError(f"{type(self).__name__} has no vectors to put into texts")

    def embed(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Embeddings by role, each `(..., rows, hidden)`; the batch is arranged already."""
        embed_rows = partial(self.embed_rows, encoder)
        found = {role: embed_by_length(embed_rows, tokens) for role, tokens in self.texts(batch).items()}
        chained = self.chained(batch)
        if chained:
            table = self.soft(encoder, found, batch)
            for role, tokens in chained.items():
                found[role] = embed_by_length(embed_rows, tokens.with_soft(table)) if len(tokens) else nobody(table)
        return found

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """The loss of given embeddings."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Embed, then the loss."""
        batch = self.arranged(encoder, batch)
        return self.loss(self.embed(encoder, batch), batch)


def nobody(table: Tensor) -> Tensor:
    """Embeddings of no texts, `(0, hidden)`, that depend on a table: what it is made of has a gradient, which is 0."""
    return table[:0] + 0.0 * table.sum()


class HandBack(torch.autograd.Function):
    """A loss value whose gradient for `states` was computed before: value = L, dL/dstates = `grad`.

    Lets a decoder run forward and backward under its own conditions (adapter off) on detached states, while the
    trainer calls `backward` on the result as on any loss.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, grad: Tensor, value: Tensor) -> Tensor:
        """Return the value, keep the gradient."""
        ctx.save_for_backward(grad)
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Scale the kept gradient."""
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None
