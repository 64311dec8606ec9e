"""Generative and contrastive learning in one stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.bottleneck import Bottleneck
from embrew.methods.embedding import EmbeddingObjective
from embrew.methods.rows import RowsKind
from embrew.methods.settings import NotNegative


@dataclass(kw_only=True)
class Joint(Bottleneck):
    """L = L_base + λ · L_gen, the base an embedding objective on pairs, L_gen that of `Bottleneck` on the same pairs.

    *Learn Before Represent* trains one after the other, which is λ = 0, and leaves the joint form to future work: this
    form is ours. The generative loss depends on tokens, so gradients are not cached, and the batch size is
    `training.per_device_train_batch_size`.

    Attributes:
        base: the objective on embeddings, `contrastive` for LBR.
        generative_weight: λ.
    """

    base: EmbeddingObjective
    generative_weight: NotNegative = 0.1

    @property
    def rows_kind(self) -> RowsKind:
        """Pairs."""
        return "pairs"

    def check_settings(self) -> None:
        """Raise unless both read pairs."""
        super().check_settings()
        if self.base.rows_kind != "pairs" or self.target != "positive":
            raise ValueError(
                f"target={self.target!r} with a base on {self.base.rows_kind}: joint learning reads pairs; set "
                "target: positive, and a base on pairs (contrastive with positives: column)"
            )

    def setup(self, encoder: Encoder) -> None:
        """Set up both objectives."""
        super().setup(encoder)
        self.base.setup(encoder)

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Return the base's batch, and `text`: query, memory and positive concatenated."""
        return {**self.base.collate(rows, encoder, seed=seed), **super().collate(rows, encoder, seed=seed)}

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return the counts of the base, and the number of target tokens."""
        return {**self.base.counts(batch), **super().counts(batch)}

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return the sum, and its parts `contrast` and `generate`."""
        contrast, generate = self.base(encoder, batch)["loss"], super().__call__(encoder, batch)["loss"]
        parts = {"contrast": contrast.detach(), "generate": generate.detach()}
        return {"loss": contrast + self.generative_weight * generate, **parts}
