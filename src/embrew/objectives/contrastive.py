"""Contrastive learning, unsupervised (dropout) and supervised (pairs with hard negatives)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import torch
from datasets import Dataset
from torch import Tensor

from embrew.distributed import gather, rank, share_of_rows, sum_over_processes, world_size
from embrew.losses import closer_than_positive, info_nce, same_text_mask, score_kl
from embrew.modeling.encoder import Encoder
from embrew.modeling.text.tokens import Tokens
from embrew.objectives.base import EmbeddingObjective
from embrew.objectives.settings import CosineMargin, Dropout, NotNegative, Positive, Share

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Contrastive(EmbeddingObjective):
    """InfoNCE with in-batch negatives (LLM2Comp's second and third stage; SimCSE; supervised baselines).

    "Learning to Compress" (arXiv 2511.17129), Eqs. 6–9: z is the encoder's pooled state, cosines are divided by τ,
    candidates are the positives of the whole batch over all processes, and the hard negatives where there are some.

    Attributes:
        positives: `dropout`: every text is encoded twice under different dropout masks; `column`: query, positive
            and negatives come from the data.
        temperature: τ (`scale: 20` in a recipe is a temperature of 0.05).
        attention_dropout: dropout on attention weights in this stage (the paper's second stage: 0.2).
        mask_same_text: leave columns with the text of the query, or of its positive, out of the softmax.
        false_negative_margin: leave out columns that the model itself finds more similar to the query than its positive
            less this much (cosine); None keeps them. What share was left out is logged as `masked`.
        false_negative_warmup: share of the stage's steps before that begins, since an untrained model knows little.
        distillation_weight: weight of a KL term beside InfoNCE, from a teacher's scores of the query's own positive and
            negatives to the model's (the column `scores`).
        distillation_temperature: of the teacher's scores.
        symmetric: average with the opposite direction (positives looking for their queries).
        in_batch_negatives: candidates are the documents of the whole batch; without, a row's own positive and hard
            negatives only (the baselines without in-batch negatives of *Following the Autoregressive Nature of LLM
            Embeddings via Compression and Alignment*, appendix A), and rows without negatives are left out.
        gather: share candidates across processes.
    """

    positives: Literal["dropout", "column"] = "column"
    temperature: Positive = 0.05
    attention_dropout: Dropout = 0.0
    mask_same_text: bool = True
    false_negative_margin: CosineMargin | None = None
    false_negative_warmup: Share = 0.1
    distillation_weight: NotNegative = 0.0
    distillation_temperature: Positive = 1.0
    symmetric: bool = False
    in_batch_negatives: bool = True
    gather: bool = True

    @property
    def rows_kind(self) -> Literal["text", "pairs"]:
        """Texts for dropout positives, pairs otherwise."""
        return "text" if self.positives == "dropout" else "pairs"

    def check_settings(self) -> None:
        """What goes with which positives."""
        if self.distillation_weight and self.positives == "dropout":
            raise ValueError("distillation_weight goes with positives=column; dropout positives have no scores")
        if not self.in_batch_negatives and (self.positives == "dropout" or self.symmetric):
            raise ValueError(
                "in_batch_negatives=false compares a query with its own documents alone; it goes with "
                "positives=column and without symmetric"
            )

    def setup(self, encoder: Encoder) -> None:
        """Set the attention dropout; dropout positives need some dropout."""
        encoder.backbone.set_attention_dropout(self.attention_dropout)
        if self.positives == "dropout" and not self.attention_dropout and not has_dropout(encoder):
            raise ValueError(
                "positives=dropout without any dropout gives every text twice the same vector; set "
                "objective.attention_dropout or encoder.lora.lora_dropout"
            )

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Without in-batch negatives, leave out rows that have none of their own.

        Raises:
            ValueError: nothing is left.
        """
        if self.in_batch_negatives:
            return dataset
        keep = [i for i, negatives in enumerate(dataset["negatives"]) if negatives]
        if not keep:
            raise ValueError(f"none of {len(dataset)} rows has negatives; set in_batch_negatives: true")
        if len(keep) < len(dataset):
            logger.info(
                "contrastive leaves out %d of %d rows without negatives", len(dataset) - len(keep), len(dataset)
            )
        return dataset.select(keep)

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Token batches by role, and keys that are equal where texts are equal."""
        if self.positives == "dropout":
            texts = [row["text"] for row in rows]
            asked = encoder.prompts.get(encoder.default_prompt_name or "", "")
            tokens = Tokens.pad(encoder.template.rows(texts, instruction=asked, max_length=encoder.max_seq_length))
            return {"query": tokens, "query_keys": text_keys(texts), "document_keys": text_keys(texts)}
        batch = collate_pairs(rows, encoder, scores=self.distillation_weight > 0)
        if not self.in_batch_negatives:
            owners = [*range(len(rows)), *(i for i, row in enumerate(rows) for _ in row["negatives"])]
            batch["owner"] = torch.tensor(owners)
        return batch

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """`query`, and `document`: positives first, then negatives; with dropout positives, the same texts twice."""
        return {"query": batch["query"], "document": batch["query" if self.positives == "dropout" else "document"]}

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Rows, where a term compares a query with its own documents alone."""
        alone = not self.in_batch_negatives or self.distillation_weight
        return {"rows": len(batch["query_keys"])} if alone else {}

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """InfoNCE against the candidates of all processes."""
        queries, documents = embeddings["query"], embeddings["document"]
        size = len(queries)
        parts = [documents[:size], documents[size:]]
        keys = [batch["document_keys"][:size], batch["document_keys"][size:]]
        labels = torch.arange(size, device=queries.device)
        if self.gather and self.in_batch_negatives and world_size() > 1:
            sizes = torch.zeros(world_size(), dtype=torch.long, device=queries.device)
            sizes[rank()] = size
            labels = labels + sum_over_processes(sizes)[: rank()].sum()
            parts, keys = [gather(part) for part in parts], [gather(key) for key in keys]
        candidates, candidate_keys = torch.cat(parts), torch.cat(keys)
        mask, shares = self._mask(queries, candidates, labels, batch["query_keys"], candidate_keys, batch)
        more, noted = self.leave_out(queries, candidates, labels, batch)
        shares |= noted
        if more is not None:
            mask = more if mask is None else mask | more
        share = size * self.unit_weights(batch, queries.device)["rows"] if self.counts(batch) else 1.0
        joint = share_of_rows(size, queries.device) if self.gather else 1.0
        loss = info_nce(queries, candidates, labels, temperature=self.temperature, mask=mask)
        loss = loss * (joint if self.in_batch_negatives else share)
        if self.distillation_weight:
            own = documents[batch["candidates"]]
            kl = share * score_kl(
                queries, own, batch["teacher"] / self.distillation_temperature, temperature=self.temperature
            )
            shares["distillation"] = kl.detach()
            loss = loss + self.distillation_weight * kl
        if not self.symmetric:
            return {"loss": loss, **shares}
        all_queries, query_keys = queries, batch["query_keys"]
        if self.gather and world_size() > 1:
            all_queries, query_keys = gather(queries), gather(query_keys)
        positives = documents[:size]
        mask, _ = self._mask(positives, all_queries, labels, keys[0][labels], query_keys, batch)
        back = joint * info_nce(positives, all_queries, labels, temperature=self.temperature, mask=mask)
        return {"loss": (loss + back) / 2, **shares}

    def leave_out(
        self, queries: Tensor, candidates: Tensor, labels: Tensor, batch: dict[str, Any]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Further columns that a query leaves out, `(batch, columns)` bool or None, and figures worth logging.

        Columns are positives in the order of the queries of all processes, then negatives.
        """
        return None, {}

    def _mask(
        self,
        rows: Tensor,
        columns: Tensor,
        labels: Tensor,
        row_keys: Tensor,
        column_keys: Tensor,
        batch: dict[str, Any],
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """What each row leaves out of its softmax, and the share that only the model's own scores ask for."""
        mask = same_text_mask(row_keys, column_keys, labels) if self.mask_same_text else None
        if not self.in_batch_negatives:
            others = batch["owner"] != labels[:, None]
            mask = others if mask is None else mask | others
        if self.false_negative_margin is None:
            return mask, {}
        found = closer_than_positive(rows, columns, labels, margin=self.false_negative_margin)
        if mask is not None:
            found &= ~mask
        if batch.get("progress", torch.ones(())) < self.false_negative_warmup:
            return mask, {"masked": torch.zeros(())}
        return found if mask is None else mask | found, {"masked": found.float().sum() / max(found.numel(), 1)}


def collate_pairs(rows: Sequence[dict[str, Any]], encoder: Encoder, *, scores: bool = False) -> dict[str, Any]:
    """Rows of query, positive and negatives: token batches by role, and keys of their texts.

    With `scores` also `teacher`, and `candidates`: `(batch, 1 + most negatives)`, each query's scores and the places of
    its own documents; what a row lacks is −inf and 0.
    """
    lengths, prompts = encoder.max_length, encoder.prompts
    queries = [row["query"] for row in rows]
    documents = [row["positive"] for row in rows] + [text for row in rows for text in row.get("negatives") or []]
    counts = [len(row.get("negatives") or []) for row in rows]
    asked = [_first(row.get("instruction"), prompts["query"]) for row in rows]
    shown = [_first(row.get("document_instruction"), prompts["document"]) for row in rows]
    shown += [shown[i] for i, count in enumerate(counts) for _ in range(count)]
    batch = {
        "query": Tokens.pad(encoder.template.rows(queries, instruction=asked, max_length=lengths["query"])),
        "document": Tokens.pad(encoder.template.rows(documents, instruction=shown, max_length=lengths["document"])),
        "query_keys": text_keys(queries),
        "document_keys": text_keys(documents),
    }
    if not scores:
        return batch
    without = [row for row in rows if row.get("scores") is None]
    if without:
        raise ValueError(
            f"distillation_weight needs a teacher's scores; the pair of query {without[0]['query'][:60]!r} has none: "
            "give a column scores (the positive's, then the negatives'), or set distillation_weight: 0"
        )
    teacher = torch.full((len(rows), 1 + max(counts)), float("-inf"))
    candidates = torch.zeros(teacher.shape, dtype=torch.long)
    place = len(rows)
    for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
        teacher[i, : 1 + count] = torch.tensor(row["scores"])
        candidates[i, : 1 + count] = torch.tensor([i, *range(place, place + count)])
        place += count
    return {**batch, "teacher": teacher, "candidates": candidates}


def _first(given: str | None, otherwise: str) -> str:
    return otherwise if given is None else given


def text_keys(texts: Sequence[str]) -> Tensor:
    """`(texts,)` int64 from a hash of the text, the same on every process and machine."""
    keys = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True) for text in texts]
    return torch.tensor(keys, dtype=torch.long)


def has_dropout(encoder: Encoder) -> bool:
    """Whether any dropout layer of the model is active in training."""
    return any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in encoder.backbone.modules())
