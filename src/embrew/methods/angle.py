"""AnglE and CoSENT: rank pairs with grades, or pairs with hard negatives, by cosine and by angle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from embrew.distributed import gather, global_rows, world_size
from embrew.encoder import Encoder
from embrew.losses.contrastive import angle, cosent, info_nce, labelled_mask, same_text_mask
from embrew.methods.base import Batch, NotNegative, Temperature, are_equal
from embrew.methods.embedding import EmbeddingObjective, Inputs, Pairs, ScoredPairs
from embrew.methods.info_nce import candidates_of, in_batch_info_nce
from embrew.text.tokens import select_rows

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(kw_only=True)
class Angle(EmbeddingObjective):
    """The composite loss of *AnglE-optimized Text Embeddings* (arXiv 2309.12871), Eq. 9, with the authors' weights.

    w_cos · CoSENT + w_ibn · in-batch negatives + w_ang · AnglE, where

    * `scored` rows are pairs with grades: both rankings compare all pairs of the batch, and each text of a pair whose
      grade is not 0 is contrasted with all other texts, its partner being the positive;
    * `pairs` rows are a query, its positive and hard negatives: (query, positive) is graded 1, (query, its negative)
      0, and the contrastive part is ½ [w_ibn · CE against the positives of the batch + w_cln · CE against the hard
      negatives too], as in the authors' code.

    A text that another row of the batch labels as a positive of the same text is no negative of it.

    CoSENT alone: `angle_weight: 0, in_batch_weight: 0`.

    Attributes:
        rows: kind of the rows.
        cosine_weight: w_cos.
        in_batch_weight: w_ibn.
        angle_weight: w_ang; needs an even number of dimensions.
        hard_negative_weight: w_cln; `pairs` rows only.
        temperature: τ of cosines.
        angle_temperature: τ of angles.
        gather: compare with the texts of all processes.
    """

    rows: Literal["scored", "pairs"] = "scored"
    cosine_weight: NotNegative = 1.0
    in_batch_weight: NotNegative = 1.0
    angle_weight: NotNegative = 1.0
    hard_negative_weight: NotNegative = 1.0
    temperature: Temperature = 0.05
    angle_temperature: Temperature = 0.05
    gather: bool = True

    @property
    def inputs(self) -> Inputs:
        """Scored pairs or pairs with negatives, by `rows`."""
        return ScoredPairs() if self.rows == "scored" else Pairs()

    def check_settings(self) -> None:
        """Raise if all weights are 0."""
        hard = self.hard_negative_weight if self.rows == "pairs" else 0.0
        if not (self.cosine_weight or self.in_batch_weight or self.angle_weight or hard):
            raise ValueError("all weights are 0; give cosine_weight, in_batch_weight or angle_weight")

    def setup(self, encoder: Encoder) -> None:
        """Switch attention dropout off."""
        encoder.backbone.set_attention_dropout(0.0)

    def check_rows(self, dataset: Dataset) -> None:
        """Raise where all texts, or all scores, are equal, so that there is nothing to rank and to contrast."""
        if self.spread_weight:
            return
        if self.rows == "pairs":
            self.inputs.check_rows(dataset)
        elif are_equal(dataset["score"]) and not (self.in_batch_weight and any(dataset["score"])):
            raise ValueError(
                f"all {len(dataset)} rows have the same score, so there is nothing to rank; give rows with different "
                "scores"
            )

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return the weighted sum and its terms."""
        if self.rows == "scored":
            left, right = embeddings["text"].chunk(2)
            grades = batch["grades"]
            contrast = {"in_batch": (self.in_batch_weight, lambda: self._partners(embeddings["text"], batch))}
        else:
            queries, documents = embeddings["query"], embeddings["document"]
            size, chosen = len(queries), self._graded(batch)
            left, right = queries[batch["query_indices"][chosen]], documents[chosen]
            grades = (chosen < size).float()
            contrast = {
                "in_batch": (self.in_batch_weight, lambda: self._in_batch(embeddings, batch, size) / 2),
                "hard_negatives": (
                    self.hard_negative_weight,
                    lambda: self._in_batch(embeddings, batch, len(documents)) / 2,
                ),
            }
        if self.gather:
            left, right, grades = gather(left), gather(right), gather(grades)
        terms: dict[str, tuple[float, Callable[[], Tensor]]] = {
            **contrast,
            "cosine": (self.cosine_weight, lambda: cosent(left, right, grades, temperature=self.temperature)),
            "angle": (self.angle_weight, lambda: angle(left, right, grades, temperature=self.angle_temperature)),
        }
        parts = {name: (weight, compute()) for name, (weight, compute) in terms.items() if weight}
        total = torch.stack([weight * value for weight, value in parts.values()]).sum()
        return {"loss": total, **{name: value.detach() for name, (_, value) in parts.items()}}

    def _graded(self, batch: Batch) -> Tensor:
        """Return the documents that are ranked with their queries: no negative that another row has as the positive."""
        query_keys, document_keys, query_indices = batch["query_keys"], batch["document_keys"], batch["query_indices"]
        size, documents = len(query_keys), torch.arange(len(document_keys), device=query_indices.device)
        labelled = query_keys, document_keys[:size]
        if self.gather:
            labelled = gather(labelled[0]), gather(labelled[1])
        positive = labelled_mask(query_keys, document_keys, labelled)[query_indices, documents]
        return documents[(documents < size) | ~positive]

    def _partners(self, vectors: Tensor, batch: Batch) -> Tensor:
        """Return InfoNCE of each text of a graded pair against all others; other texts count as 0 in the mean."""
        keys, device = batch["text_keys"], vectors.device
        columns = torch.arange(len(vectors), device=device)
        partner = columns.roll(len(columns) // 2)
        candidates, candidate_keys, total = vectors, keys, float(len(columns))
        labelled = select_rows(keys, batch["graded"]), select_rows(keys[partner], batch["graded"])
        if self.gather:
            labelled = gather(labelled[0]), gather(labelled[1])
            position = global_rows(len(columns), device)
            columns, partner = columns + position.offset, partner + position.offset
            total = position.total / world_size()
            candidates, candidate_keys = gather(vectors), gather(keys)
        count = len(batch["graded"])
        if not count:
            return candidates.sum() * 0.0  # not of `vectors`: every process needs the gather in its backward pass
        vectors, keys, columns, partner = (
            select_rows(values, batch["graded"]) for values in (vectors, keys, columns, partner)
        )
        mask = same_text_mask(keys, candidate_keys, partner, labelled=labelled)
        mask |= torch.arange(len(candidates), device=device) == columns[:, None]
        loss = info_nce(vectors, candidates, partner, temperature=self.temperature, mask=mask)
        return loss * count / total

    def _in_batch(self, embeddings: dict[str, Tensor], batch: Batch, count: int) -> Tensor:
        """Return InfoNCE of queries against the first `count` documents: the positives, or hard negatives too."""
        queries, documents = embeddings["query"], embeddings["document"][:count]
        query_keys, document_keys = batch["query_keys"], batch["document_keys"][:count]
        candidates = candidates_of(queries, documents, query_keys, document_keys, shared=self.gather)
        mask = same_text_mask(query_keys, candidates.keys, candidates.labels, labelled=candidates.pair_keys)
        return in_batch_info_nce(queries, candidates, temperature=self.temperature, mask=mask, shared=self.gather)
