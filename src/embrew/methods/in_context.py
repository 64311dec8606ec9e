"""Contrastive learning with demonstrations of the task before each query, drawn from the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from embrew.distributed import gather
from embrew.encoder import Encoder
from embrew.methods.demonstration_batch import Drawn
from embrew.methods.demonstrations import DemonstratedPairs
from embrew.methods.embedding import EmbeddingObjective
from embrew.methods.info_nce import Candidates, InfoNCE
from embrew.methods.settings import CountOrNone
from embrew.settings.encoder import EncoderSettings


@dataclass(kw_only=True)
class InContext(InfoNCE, EmbeddingObjective):
    """InfoNCE whose queries follow textual demonstrations, bge-en-icl (arXiv 2409.15700), section 3.

    `DemonstratedPairs` describes how demonstrations are drawn. `demo_similarity` is the mean cosine of queries and the
    passages of their own demonstrations, `other_similarity` that of queries and their other negatives. If the first is
    far below the second, the model has learned that passages in the prompt are not the answer.

    Attributes:
        demonstrations: largest number of demonstrations per query.
        mask_demo_negatives: leave positives and negatives of a query's demonstrations out of its softmax.
    """

    demonstrations: CountOrNone = 5
    mask_demo_negatives: bool = False

    def check_settings(self) -> None:
        """Raise unless positives come from the data."""
        super().check_settings()
        check_positives(self)

    @property
    def inputs(self) -> DemonstratedPairs:
        """Pairs with demonstrations as text."""
        return DemonstratedPairs(pairs=self.pairs, most=self.demonstrations, shared=self.gather)

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless the encoder reads demonstrations as text."""
        self.inputs.check_settings(settings.demonstrations)

    def setup(self, encoder: Encoder) -> None:
        """Raise unless the model has positions for the demonstrations."""
        self.check_encoder(encoder.settings, len(encoder.backbone.memory_ids))
        self.inputs.setup(encoder)
        super().setup(encoder)

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return InfoNCE of the queries after their demonstrations."""
        queries, documents = embeddings["query"], embeddings["document"]
        return compare_demonstrated(self, queries, documents, batch, mask_demonstrations=self.mask_demo_negatives)


def check_positives(objective: InfoNCE) -> None:
    """Raise unless positives come from the data."""
    if objective.positives != "column":
        raise ValueError(f"positives={objective.positives}: demonstrations are pairs, so give positives: column")


def compare_demonstrated(
    objective: InfoNCE, queries: Tensor, documents: Tensor, batch: dict[str, Any], *, mask_demonstrations: bool
) -> dict[str, Tensor]:
    """Return `InfoNCE.compare` of queries after demonstrations, and their similarity to these demonstrations.

    With `mask_demonstrations`, the softmax of a query leaves the texts of its demonstrations out.
    """
    candidates = objective.candidates(queries, documents, batch)
    shown = of_demonstrations(batch, everywhere=objective.gather and objective.in_batch_negatives)
    excluded = shown if mask_demonstrations else None
    parts = objective.compare(queries, documents, batch, candidates=candidates, excluded=excluded)
    if not batch["drawn"].some:
        return parts
    return {**parts, **demonstration_similarities(queries, candidates, shown)}


def of_demonstrations(batch: dict[str, Any], *, everywhere: bool) -> Tensor:
    """Return the candidates that are texts of a query's demonstrations or their negatives: `(queries, columns)` bool.

    With `everywhere`, the candidates are those of all processes.
    """
    drawn: Drawn = batch["drawn"]
    owners, size = batch["owners"] + drawn.here.offset, len(drawn.rows)
    if everywhere:
        owners = torch.cat([gather(owners[:size]), gather(owners[size:])])
    return (owners[None, :, None] == drawn.rows[:, None, :]).any(-1)


@torch.no_grad()
def demonstration_similarities(queries: Tensor, candidates: Candidates, shown: Tensor) -> dict[str, Tensor]:
    """Return `demo_similarity` and `other_similarity` of `InContext`; `shown` as `of_demonstrations` returns it.

    NaN is the mean of no cosines, as where the passages of all demonstrations are those of other processes.
    """
    cosines = normalize(queries.float(), dim=-1) @ normalize(candidates.vectors.float(), dim=-1).T
    columns = torch.arange(shown.shape[1], device=shown.device)
    passages = shown & (columns < candidates.positives)
    others = shown.any(-1, keepdim=True) & ~shown & (columns != candidates.labels[:, None])
    found = {"demo_similarity": passages, "other_similarity": others}
    return {name: (cosines * chosen).sum() / chosen.sum() for name, chosen in found.items()}
