"""Contrastive learning with demonstrations before each query, drawn from the batch: text, or vectors (EPIC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from embrew.distributed import gather
from embrew.encoder import Encoder
from embrew.methods.base import CountOrNone, NotNegative
from embrew.methods.demonstrations import DemonstratedPairs, Drawn
from embrew.methods.embedding import Candidates
from embrew.methods.info_nce import Contrastive
from embrew.model.contexts import check_reads
from embrew.settings.encoder import EncoderSettings


@dataclass(kw_only=True)
class InContext(Contrastive):
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
        """Raise unless positives come from the data, and candidates are documents."""
        super().check_settings()
        if self.positives != "column":
            raise ValueError(f"positives={self.positives}: demonstrations are pairs, so give positives: column")
        if self.candidates != "documents":
            raise ValueError("candidates=both goes with contrastive; demonstrations need candidates: documents")

    @property
    def inputs(self) -> DemonstratedPairs:
        """Pairs with demonstrations as text."""
        return DemonstratedPairs(pairs=self.pairs, most=self.demonstrations, shared=self.gather)

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless the encoder reads demonstrations in the form that is trained: text, or vectors.

        With vectors, a prompt of instructions only (EPIC, Table 4a) may be text.
        """
        read, vectors = settings.demonstrations, self.inputs.vectors
        if read is None:
            raise ValueError(
                "queries are trained with demonstrations, and the encoder reads none; set encoder.demonstrations"
            )
        if not vectors and read.compress != "none":
            raise ValueError(
                f"encoder.demonstrations.compress={read.compress} puts vectors into prompts, which objective type: "
                "epic trains; or set compress: none"
            )
        if vectors and read.compress == "none" and read.format != "instruction":
            raise ValueError(
                "encoder.demonstrations.compress=none makes them plain text, which objective type: icl trains; "
                "choose what becomes a vector: pair, all, query or passage"
            )

    def setup(self, encoder: Encoder) -> None:
        """Raise where a query with its demonstrations may have more tokens than the model has positions."""
        super().setup(encoder)
        budget, query = check_reads(encoder).budget, encoder.max_length["query"]
        if self.demonstrations:
            encoder.backbone.check_longest(
                query + (float("inf") if budget is None else budget),
                f"max_length.query={query} and encoder.demonstrations.budget={budget} come to rows of "
                + ("any length" if budget is None else f"up to {query + budget} tokens"),
                "set encoder.demonstrations.budget, or max_length.query, so that both together fit",
            )
        super().setup(encoder)

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return InfoNCE of the queries after their demonstrations."""
        return self.compare_demonstrated(embeddings["query"], embeddings["document"], batch)

    def compare_demonstrated(self, queries: Tensor, documents: Tensor, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return `compare` of queries after demonstrations, and their similarity to these demonstrations."""
        candidates = self.columns(queries, documents, batch)
        shown = of_demonstrations(batch, everywhere=self.gather and self.in_batch_negatives)
        excluded = shown if self.mask_demo_negatives else None
        parts = self.compare(queries, documents, batch, candidates=candidates, excluded=excluded)
        if not batch["drawn"].some:
            return parts
        return {**parts, **demonstration_similarities(queries, candidates, shown)}


@dataclass(kw_only=True)
class Epic(InContext):
    """EPIC ("Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders"), section 2.

    Queries and documents are embedded without demonstrations, then each query again after k demonstrations, drawn as
    `DemonstratedPairs` describes. Queries and passages of these are vectors: their plain embeddings, unnormalised,
    through the encoder's projection (Eq. 3). The loss is InfoNCE of the prompted queries (Eqs. 4–6), or of the plain
    query if k is 0.

    The paper does not say whether gradients flow through the vectors; here they do, to the plain texts, also with
    gradient caching.

    Attributes:
        demo_grad: `full`, or `detach`: no gradient through the vectors to the texts that they embed; the projection is
            trained in both cases.
        plain_weight: weight of the additional loss of all queries without demonstrations.
    """

    demo_grad: Literal["full", "detach"] = "full"
    plain_weight: NotNegative = 0.0

    @property
    def inputs(self) -> DemonstratedPairs:
        """Pairs with demonstrations as vectors."""
        detach = self.demo_grad == "detach"
        return DemonstratedPairs(
            pairs=self.pairs, most=self.demonstrations, shared=self.gather, vectors=True, detach=detach
        )

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless the encoder reads demonstrations as vectors, and learns enough of them."""
        super().check_encoder(settings, memory_tokens)
        read = settings.demonstrations
        assert read is not None
        if read.learnable is not None and self.demonstrations > read.learnable:
            raise ValueError(
                f"demonstrations={self.demonstrations}, and encoder.demonstrations.learnable={read.learnable} "
                "vectors replace them; give the same number"
            )
        if self.plain_weight and not read.vectors:
            raise ValueError("plain_weight goes with demonstrations that are vectors; these are text")

    def setup(self, encoder: Encoder) -> None:
        """Make the projection trainable."""
        super().setup(encoder)
        assert encoder.demonstrator is not None
        encoder.demonstrator.requires_grad_(True)

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return InfoNCE of the prompted queries; `plain` is that of all queries without demonstrations."""
        single = {role: vectors[0] if vectors.ndim == 3 else vectors for role, vectors in embeddings.items()}
        plain, documents = single["query"], single["document"]
        queries = plain
        if "prompted" in single:
            rows = batch["drawn"].prompted_rows
            queries = plain.index_copy(0, rows, single["prompted"][: len(rows)].to(plain.dtype))
        parts = self.compare_demonstrated(queries, documents, batch)
        if not self.plain_weight:
            return parts
        value = self.compare(plain, documents, batch)["loss"]
        return {**parts, "loss": parts["loss"] + self.plain_weight * value, "plain": value.detach()}


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
    sides = {"demo_similarity": passages, "other_similarity": others}
    return {name: (cosines * chosen).sum() / chosen.sum() for name, chosen in sides.items()}
