"""Contrastive learning, unsupervised (dropout) and supervised (pairs with hard negatives)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from embrew.methods.embedding import EmbeddingObjective
from embrew.methods.info_nce import InfoNCE
from embrew.methods.inputs import Inputs, RepeatedTexts


@dataclass(kw_only=True)
class Contrastive(InfoNCE, EmbeddingObjective):
    """InfoNCE with in-batch negatives (LLM2Comp's second and third stage; SimCSE; supervised baselines)."""

    @property
    def inputs(self) -> Inputs:
        """Repeated texts for dropout positives, pairs otherwise."""
        return RepeatedTexts() if self.positives == "dropout" else self.pairs

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return InfoNCE against the candidates of all processes."""
        return self.compare(embeddings["query"], embeddings["document"], batch)
