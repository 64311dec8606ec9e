"""What a training objective is: settings, a collate, and a call that gives a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from datasets import Dataset
from torch import Tensor, nn

from embrew.modeling.encoder import Encoder
from embrew.modeling.encoding import embed_by_length
from embrew.modeling.tokens import Tokens

RowsKind = Literal["text", "pairs", "scored"]


@dataclass(kw_only=True)
class Objective:
    """One method, one stage. The fields of the dataclass are its settings; it keeps no weights.

    Attributes:
        kind: what a row of its data holds: `text`; `pairs`, that is query, positive, negatives; `scored`, that is
            sentence1, sentence2, score.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}
    kind: ClassVar[RowsKind] = "text"

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

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """`loss`, a scalar with gradient, and detached parts worth logging."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")


@dataclass(kw_only=True)
class EmbeddingObjective(Objective):
    """An objective whose loss depends on embeddings only: its batches can be gradient-cached and gathered.

    A method says what is embedded (`texts`) and what the loss of embeddings is (`loss`).
    """

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """What is embedded, by role."""
        raise NotImplementedError(f"{type(self).__name__} has no texts")

    def embed_rows(self, encoder: Encoder, tokens: Tokens) -> Tensor:
        """Embeddings of some rows: `(..., rows, hidden)`."""
        vectors: Tensor = encoder(tokens)
        return vectors

    def embed(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Embeddings by role, each `(..., rows, hidden)`."""
        return {
            role: embed_by_length(partial(self.embed_rows, encoder), tokens)
            for role, tokens in self.texts(batch).items()
        }

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """The loss of given embeddings."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Embed, then the loss."""
        return self.loss(self.embed(encoder, batch), batch)


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
