"""Matryoshka: any embedding objective, on leading dimensions too."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from torch import Tensor

from embrew.modeling.encoder import Encoder
from embrew.modeling.tokens import Tokens
from embrew.objectives.base import EmbeddingObjective, RowsKind

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Matryoshka(EmbeddingObjective):
    """Σ_m c_m · base(first m dimensions), *Matryoshka Representation Learning* (arXiv 2205.13147), Eq. 1.

    Attributes:
        base: the objective that is nested.
        dims: how many leading dimensions; the full width counts only if it is among them.
        weights: c_m, in the order of `dims`; 1 each without them.
    """

    base: EmbeddingObjective
    dims: list[int]
    weights: list[float] | None = None

    @property
    def rows_kind(self) -> RowsKind:
        """The base objective's."""
        return self.base.rows_kind

    def setup(self, encoder: Encoder) -> None:
        """Check the dimensions; set up the base objective."""
        width = encoder.backbone.hidden_size
        if not self.dims or len(set(self.dims)) < len(self.dims) or not all(0 < m <= width for m in self.dims):
            raise ValueError(f"dims={self.dims}; give different numbers from 1 to {width}")
        if self.weights is not None and len(self.weights) != len(self.dims):
            raise ValueError(f"weights={self.weights} for dims={self.dims}; give one a dimension")
        if width not in self.dims:
            logger.warning("dims=%s leave out all %d dimensions, which are then trained in part only", self.dims, width)
        self.base.setup(encoder)

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """As the base objective does."""
        return self.base.prepare(dataset, encoder)

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """As the base objective does."""
        return self.base.collate(rows, encoder, seed=seed)

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """The base objective's."""
        return self.base.texts(batch)

    def embed_rows(self, encoder: Encoder, tokens: Tokens) -> Tensor:
        """The base objective's."""
        return self.base.embed_rows(encoder, tokens)

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """The weighted sum, and the base loss at each width as `loss_m`."""
        parts: dict[str, Tensor] = {}
        total: Any = 0.0
        for m, weight in zip(self.dims, self.weights or [1.0] * len(self.dims), strict=True):
            value = self.base.loss({role: vectors[..., :m] for role, vectors in embeddings.items()}, batch)["loss"]
            total = total + weight * value
            parts[f"loss_{m}"] = value.detach()
        return {"loss": total, **parts}
