"""The interface of training objectives: settings, a collate function, and a call that returns a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn

from embrew.encoder import Encoder
from embrew.methods.reductions import unit_weights
from embrew.methods.rows import RowsKind
from embrew.methods.settings import check_values
from embrew.settings.encoder import EncoderSettings


@dataclass(kw_only=True)
class Objective:
    """A training method for one stage. The fields of the dataclass are its settings; it holds no weights."""

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        check_values(type(self), given, words=f"{type(self).__name__}: ")
        self.check_settings()

    def check_settings(self) -> None:
        """Raise where settings do not go together."""

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise where an encoder's settings do not fit; those of a recipe are checked before its model is opened."""

    @property
    def rows_kind(self) -> RowsKind:
        """The kind of rows that these settings need."""
        return "text"

    def setup(self, encoder: Encoder) -> None:
        """Prepare the encoder for this objective before the first step; raise where it does not fit."""
        self.check_encoder(encoder.settings, len(encoder.backbone.memory_ids))

    def learned(self, encoder: Encoder) -> dict[str, nn.Parameter]:
        """Return parameters that only training needs, by name; each batch holds them as `batch["learned"]`."""
        return {}

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Return the data set without rows that the objective cannot use."""
        return dataset

    def precompute(self, dataset: Dataset, encoder: Encoder, folder: Path | None = None) -> Dataset:
        """Add columns that are computed once, by the encoder at the start of the stage.

        With `folder`, results that take long are written there, for a run that is resumed.
        """
        return dataset

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Convert rows to a batch, on the CPU.

        Random choices depend on `seed`, which changes with the epoch, and on the row only. Batches are prefetched, so
        the state of a global generator would be different after resuming.
        """
        raise NotImplementedError(f"{type(self).__name__} has no collate")

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return, by name, the numbers of tokens or rows in this batch over which parts of the loss are means.

        Such a mean is over all micro-batches of an optimiser step, of all processes. A loss that compares the rows of a
        batch with each other has no entry: the loss of a step is the mean of the losses of its micro-batches.
        """
        return {}

    def unit_weights(self, batch: dict[str, Any], device: torch.device) -> Mapping[str, float]:
        """Return the factor for the loss of one token or row, by the names of `counts`.

        The trainer puts them into the batch. Without, the step is this batch and those of the other processes.
        """
        return unit_weights(self.counts(batch), batch, device)

    def concern(self, figures: Mapping[str, float]) -> str | None:
        """Return a warning about the loss and its logged parts, means over some steps; None if nothing is wrong."""
        return None

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return `loss`, a scalar with gradient, and detached parts for the log."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")
