"""InfoNCE over the candidates of all processes, and contrastive learning with it.

For queries q_b and candidates d_j, of which d_b is the positive of q_b, with temperature τ:

    L = mean_b −log [ exp(cos(q_b, d_b) / τ) / Σ_j exp(cos(q_b, d_j) / τ) ]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from embrew.distributed import gather, global_rows, share_of_rows
from embrew.encoder import Encoder
from embrew.losses.contrastive import closer_than_positive, info_nce, same_text_mask, score_kl
from embrew.methods.base import Batch, CosineMargin, Dropout, NotNegative, Share, Temperature
from embrew.methods.embedding import EmbeddingObjective, Inputs, Pairs, RepeatedTexts

if TYPE_CHECKING:
    from datasets import Dataset


class Candidates(NamedTuple):
    """The documents that queries are compared with: positives of all processes in order, then negatives.

    Attributes:
        vectors: `(candidates, hidden)`.
        keys: `(candidates,)` int64 hashes of the texts, equal where texts are equal.
        labels: `(queries,)` the index of each query's own positive.
        positives: number of candidates that are positives.
        pair_keys: keys of all queries and of their positives, `(positives,)` each.
    """

    vectors: Tensor
    keys: Tensor
    labels: Tensor
    positives: int
    pair_keys: tuple[Tensor, Tensor]


def candidates_of(
    queries: Tensor, documents: Tensor, query_keys: Tensor, document_keys: Tensor, *, shared: bool
) -> Candidates:
    """Return the candidates of queries: documents `(documents, hidden)`, one positive per query, then negatives.

    With `shared`, documents are gathered over all processes.
    """
    size = len(queries)
    labels = torch.arange(size, device=queries.device)
    if not shared:
        return Candidates(documents, document_keys, labels, size, (query_keys, document_keys[:size]))
    parts = [gather(documents[:size]), gather(documents[size:])]
    part_keys = [gather(document_keys[:size]), gather(document_keys[size:])]
    labels = labels + global_rows(size, queries.device).offset
    pair_keys = gather(query_keys), part_keys[0]
    return Candidates(torch.cat(parts), torch.cat(part_keys), labels, len(parts[0]), pair_keys)


def in_batch_info_nce(
    queries: Tensor, candidates: Candidates, *, temperature: float, mask: Tensor | None, shared: bool
) -> Tensor:
    """Return InfoNCE; with `shared`, its mean over processes is the mean over the queries of all processes."""
    loss = info_nce(queries, candidates.vectors, candidates.labels, temperature=temperature, mask=mask)
    return loss * (share_of_rows(len(queries), queries.device) if shared else 1.0)


@dataclass(kw_only=True)
class Contrastive(EmbeddingObjective):
    """InfoNCE with in-batch negatives (LLM2Comp's second and third stage; SimCSE; supervised baselines).

    "Learning to Compress" (arXiv 2511.17129), Eqs. 6 and 8: z is the encoder's pooled state, cosines are divided by τ,
    candidates are the positives of the global batch, and its hard negatives, if any.

    Attributes:
        positives: `dropout`: every text is encoded twice under different dropout masks; `column`: query, positive
            and negatives come from the data.
        temperature: τ (`scale: 20` in a recipe is a temperature of 0.05).
        attention_dropout: dropout on attention weights in this stage (the paper's second stage: 0.2).
        mask_same_text: leave columns with the text of the query, or of any text that a row of the global batch has as
            its positive, out of the softmax.
        false_negative_margin: leave out candidates whose cosine to the query is larger than that of its positive minus
            this margin, as likely false negatives; None: keep them. The share that is left out is logged as `masked`.
        false_negative_warmup: share of the stage's steps before this starts, since an untrained model is unreliable.
        distillation_weight: weight of an additional KL term, from a teacher's scores of the query's own positive and
            negatives to the model's (the column `scores`).
        distillation_temperature: temperature of the teacher's scores.
        candidates: `documents`: the positives and hard negatives of the global batch, as in the authors' code; `both`:
            its queries too, the 2B columns of Eq. 8. As printed, that sum includes the query itself, which
            `mask_same_text` leaves out (NT-Xent).
        symmetric: average with the opposite direction (positives against all queries).
        in_batch_negatives: candidates are the documents of the global batch; without, a row's own positive and hard
            negatives only (the baselines without in-batch negatives of *Following the Autoregressive Nature of LLM
            Embeddings via Compression and Alignment*, appendix A), and rows without negatives are left out.
        gather: share candidates between processes.
    """

    positives: Literal["dropout", "column"] = "column"
    temperature: Temperature = 0.05
    attention_dropout: Dropout = 0.0
    mask_same_text: bool = True
    false_negative_margin: CosineMargin | None = None
    false_negative_warmup: Share = 0.1
    distillation_weight: NotNegative = 0.0
    distillation_temperature: Temperature = 1.0
    candidates: Literal["documents", "both"] = "documents"
    symmetric: bool = False
    in_batch_negatives: bool = True
    gather: bool = True

    def check_settings(self) -> None:
        """Raise if settings contradict each other."""
        if self.distillation_weight and self.positives == "dropout":
            raise ValueError("distillation_weight goes with positives=column; dropout positives have no scores")
        needs_whole_batch = self.positives == "dropout" or self.symmetric or self.candidates == "both"
        if not self.in_batch_negatives and needs_whole_batch:
            raise ValueError(
                "in_batch_negatives=false compares a query with its own documents alone; it goes with "
                "positives=column, candidates=documents and without symmetric"
            )

    def setup(self, encoder: Encoder) -> None:
        """Set the attention dropout; raise if dropout positives have no dropout at all."""
        encoder.backbone.set_attention_dropout(self.attention_dropout)
        if self.positives == "dropout" and not self.attention_dropout and not has_dropout(encoder):
            raise ValueError(
                "positives=dropout without any dropout gives every text twice the same vector; set "
                "objective.attention_dropout or encoder.lora.lora_dropout"
            )

    def check_rows(self, dataset: Dataset) -> None:
        """Raise where no row has another candidate than its own positive."""
        if not (self.spread_weight or self.distillation_weight):
            self.inputs.check_rows(dataset)

    @property
    def pairs(self) -> Pairs:
        """The inputs of `positives: column`."""
        return Pairs(with_negatives=not self.in_batch_negatives, scores=self.distillation_weight > 0)

    @property
    def inputs(self) -> Inputs:
        """Repeated texts for dropout positives, pairs otherwise."""
        return RepeatedTexts() if self.positives == "dropout" else self.pairs

    def num_items(self, batch: Batch) -> dict[str, int]:
        """Return the number of rows, if a term compares a query with its own documents only."""
        weighs_rows = not self.in_batch_negatives or self.distillation_weight
        return {"rows": len(batch["query_keys"])} if weighs_rows else {}

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return InfoNCE against the candidates of all processes."""
        return self.compare(embeddings["query"], embeddings["document"], batch)

    def columns(self, queries: Tensor, documents: Tensor, batch: Batch) -> Candidates:
        """Return the candidates, the columns of the score matrix: documents, then queries with `candidates: both`.

        They are those of all processes, or of this one without `gather`.
        """
        keys = batch["document_keys"]
        if self.candidates == "both":
            documents, keys = torch.cat([documents, queries]), torch.cat([keys, batch["query_keys"]])
        shared = self.gather and self.in_batch_negatives
        return candidates_of(queries, documents, batch["query_keys"], keys, shared=shared)

    def compare(
        self,
        queries: Tensor,
        documents: Tensor,
        batch: Batch,
        *,
        candidates: Candidates | None = None,
        excluded: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return `loss` (InfoNCE, with distillation and the opposite direction where set), and values for the log.

        Args:
            queries: `(batch, hidden)`.
            documents: `(documents, hidden)`: positives, then negatives.
            batch: batch as `Pairs` or `RepeatedTexts` collate it.
            candidates: result of `columns`, if already computed.
            excluded: `(batch, candidates)` bool: further candidates to leave out of the softmax.
        """
        size, temperature = len(queries), self.temperature
        row_scale = size * self.item_weights(batch, queries.device)["rows"] if self.num_items(batch) else 1.0
        if candidates is None:
            candidates = self.columns(queries, documents, batch)
        mask, parts = self._mask(queries, candidates, batch["query_keys"], batch)
        mask = _union(mask, excluded)
        shared = self.gather and self.in_batch_negatives
        loss = in_batch_info_nce(queries, candidates, temperature=temperature, mask=mask, shared=shared)
        if not self.in_batch_negatives:
            loss = loss * row_scale
        if self.distillation_weight:
            documents_of_query = documents[batch["candidates"]]
            teacher = batch["teacher"] / self.distillation_temperature
            kl = row_scale * score_kl(queries, documents_of_query, teacher, temperature=temperature)
            parts["distillation"] = kl.detach()
            loss = loss + self.distillation_weight * kl
        if not self.symmetric:
            return {"loss": loss, **parts}
        positives, keys = documents[:size], batch["document_keys"][:size]
        swapped_batch = {"query_keys": keys, "document_keys": batch["query_keys"]}
        query_candidates = self.columns(positives, queries, swapped_batch)
        mask, _ = self._mask(positives, query_candidates, keys, batch)
        reverse_loss = in_batch_info_nce(
            positives, query_candidates, temperature=temperature, mask=mask, shared=self.gather
        )
        return {"loss": (loss + reverse_loss) / 2, **parts}

    def _mask(
        self, queries: Tensor, candidates: Candidates, keys: Tensor, batch: Batch
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return the mask of candidates that each query leaves out of its softmax, and values for the log.

        `masked` is the share of candidates that `false_negative_margin` alone leaves out.
        """
        labels = candidates.labels
        mask = None
        if self.mask_same_text:
            pair_keys = candidates.pair_keys if self.in_batch_negatives else None
            mask = same_text_mask(keys, candidates.keys, labels, labelled=pair_keys)
        if not self.in_batch_negatives:
            mask = _union(mask, batch["query_indices"] != labels[:, None])
        if self.false_negative_margin is None:
            return mask, {}
        closer = closer_than_positive(queries, candidates.vectors, labels, margin=self.false_negative_margin)
        if mask is not None:
            closer &= ~mask
        if float(batch.get("progress", 1.0)) < self.false_negative_warmup:
            return mask, {"masked": torch.zeros((), device=queries.device)}
        return _union(mask, closer), {"masked": closer.float().sum() / max(closer.numel(), 1)}


def _union(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return `mask | other`, where None is an empty mask."""
    return mask if other is None else other if mask is None else mask | other


def has_dropout(encoder: Encoder) -> bool:
    """Whether any dropout layer of the model is active in training."""
    return any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in encoder.backbone.modules())
