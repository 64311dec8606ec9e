"""Contrastive learning whose queries stand behind demonstrations that are the model's own embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from embrew.modeling.encoder import Encoder
from embrew.modeling.prompting.contexts import check_reads
from embrew.modeling.prompting.vectors import sampled
from embrew.modeling.settings.demonstrations import Demonstrations
from embrew.modeling.text.tokens import Tokens
from embrew.objectives.in_context import InContext
from embrew.objectives.settings import NotNegative


@dataclass(kw_only=True)
class Epic(InContext):
    """EPIC ("Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders"), section 2.

    Queries and documents are embedded plainly; then each query once more behind k demonstrations, drawn as in
    `InContext`, whose queries and passages are vectors: their plain embeddings, raw, through the encoder's projection
    (Eq. 3). The loss is InfoNCE of the prompted queries (Eqs. 4–6), and of the plain one where k is 0.

    The paper does not say whether gradients flow through the vectors; here they do, also under gradient caching, which
    carries them back to the plain texts.

    Attributes:
        demo_grad: `full`, or `detach`: the vectors are constants to the texts they were made of; the projection is
            trained all the same.
        plain_weight: weight of the loss of all queries without demonstrations, beside it.
    """

    chains: ClassVar[bool] = True
    demo_grad: Literal["full", "detach"] = "full"
    plain_weight: NotNegative = 0.0

    def setup(self, encoder: Encoder) -> None:
        """Check the settings; from here on the projection is trained."""
        super().setup(encoder)
        settings = check_reads(encoder)
        if settings.learnable is not None and self.demonstrations > settings.learnable:
            raise ValueError(
                f"demonstrations={self.demonstrations}, and encoder.demonstrations.learnable={settings.learnable} "
                "vectors stand in their place; give as many"
            )
        if self.plain_weight and not settings.vectors:
            raise ValueError("plain_weight goes with demonstrations that are vectors; these are text")
        assert encoder.demonstrator is not None
        encoder.demonstrator.requires_grad_(True)

    def check(self, settings: Demonstrations) -> None:
        """Raise where demonstrations are plain text; a prompt of instructions alone (Table 4a) is let through."""
        if settings.compress == "none" and settings.format != "instruction":
            raise ValueError(
                "encoder.demonstrations.compress=none makes them plain text, which objective type: icl trains; "
                "choose what becomes a vector: pair, all, query or passage"
            )

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """`query`, plain, and `document`; and `instruction`, where those are vectors too."""
        more = {"instruction": batch["instruction"]} if "instruction" in batch else {}
        return {**super().texts(batch), **more}

    def chained(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """`prompted`: the queries that have demonstrations, behind them."""
        return {"prompted": batch["prompted"]} if "prompted" in batch else {}

    def embed_rows(self, encoder: Encoder, tokens: Tokens) -> Tensor:
        """Embeddings `(rows, hidden)`; with sampled states, `(1 + most, rows, hidden)`."""
        return sampled(encoder, tokens) if check_reads(encoder).every else encoder(tokens)

    def soft(self, encoder: Encoder, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> Tensor:
        """The vectors of the joint batch: of queries, passages, instructions; or the learned ones."""
        demonstrator = encoder.demonstrator
        assert demonstrator is not None
        if demonstrator.learned is not None:
            return demonstrator.learned
        size = len(batch["query_keys"])
        found = {"query": "query", "passage": "document", "instruction": "instruction"}
        raw = []
        for part in demonstrator.settings.vectors:
            vectors = embeddings[found[part]]
            vectors = vectors if vectors.ndim == 3 else vectors[None]
            if part == "instruction":
                raw.append(vectors[0])
            else:
                joint = self.everywhere(vectors[:, :size].transpose(0, 1).contiguous())
                raw.append(joint.transpose(0, 1).flatten(0, 1))
        table = torch.cat(raw)
        made: Tensor = demonstrator(table.detach() if self.demo_grad == "detach" else table)
        return made

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """InfoNCE of the prompted queries; `plain` is that of all queries without demonstrations."""
        single = {role: vectors[0] if vectors.ndim == 3 else vectors for role, vectors in embeddings.items()}
        plain, documents = single["query"], single["document"]
        queries = plain
        if "prompted" in single:
            queries = plain.index_copy(0, batch["prompted_rows"], single["prompted"].to(plain.dtype))
        parts = super().loss({"query": queries, "document": documents}, batch)
        if not self.plain_weight:
            return parts
        alone = {**batch, "demonstrations": torch.full_like(batch["demonstrations"], -1)}
        value = super().loss({"query": plain, "document": documents}, alone)["loss"]
        return {**parts, "loss": parts["loss"] + self.plain_weight * value, "plain": value.detach()}
