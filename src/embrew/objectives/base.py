"""What a training objective is: settings, a collate function, and a call that returns a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn

from embrew.modeling.encoder import Encoder
from embrew.objectives.reductions import unit_weights
from embrew.objectives.rows import RowsKind
from embrew.objectives.settings import check_values


@dataclass(kw_only=True)
class Objective:
    """One method, one stage. The fields of the dataclass are its settings; it keeps no weights."""

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        check_values(type(self), given, words=f"{type(self).__name__}: ")
        self.check_settings()

    def check_settings(self) -> None:
        """Refuse settings that do not go together; what needs an encoder is checked in `setup`."""

    @property
    def rows_kind(self) -> RowsKind:
        """The kind of rows these settings ask for."""
        return "text"

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

        What takes long is kept in `folder`, where there is one, for a run that is stopped and resumed.
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
        return unit_weights(self.counts(batch), batch, device)

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """`loss`, a scalar with gradient, and detached parts worth logging."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")
