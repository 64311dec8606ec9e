"""Contrastive learning with demonstrations before each query that are embeddings of the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.demonstrations import DemonstratedPairs
from embrew.methods.embedding import EmbeddingObjective
from embrew.methods.in_context import check_positives, compare_demonstrated
from embrew.methods.info_nce import InfoNCE
from embrew.methods.settings import CountOrNone, NotNegative
from embrew.settings.encoder import EncoderSettings


@dataclass(kw_only=True)
class Epic(InfoNCE, EmbeddingObjective):
    """EPIC ("Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders"), section 2.

    Queries and documents are embedded without demonstrations, then each query again after k demonstrations, drawn as
    `DemonstratedPairs` describes. Queries and passages of these are vectors: their plain embeddings, unnormalised,
    through the encoder's projection (Eq. 3). The loss is InfoNCE of the prompted queries (Eqs. 4–6), or of the plain
    query if k is 0.

    The paper does not say whether gradients flow through the vectors; here they do, to the plain texts, also with
    gradient caching.

    Attributes:
        demonstrations: largest number of demonstrations per query.
        mask_demo_negatives: leave positives and negatives of a query's demonstrations out of its softmax.
        demo_grad: `full`, or `detach`: no gradient through the vectors to the texts that they embed; the projection is
            trained in both cases.
        plain_weight: weight of the additional loss of all queries without demonstrations.
    """

    demonstrations: CountOrNone = 5
    mask_demo_negatives: bool = False
    demo_grad: Literal["full", "detach"] = "full"
    plain_weight: NotNegative = 0.0

    def check_settings(self) -> None:
        """Raise unless positives come from the data."""
        super().check_settings()
        check_positives(self)

    @property
    def inputs(self) -> DemonstratedPairs:
        """Pairs with demonstrations as vectors."""
        detach = self.demo_grad == "detach"
        return DemonstratedPairs(
            pairs=self.pairs, most=self.demonstrations, shared=self.gather, vectors=True, detach=detach
        )

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless the encoder reads demonstrations as vectors."""
        read = self.inputs.check_settings(settings.demonstrations)
        if read.learnable is not None and self.demonstrations > read.learnable:
            raise ValueError(
                f"demonstrations={self.demonstrations}, and encoder.demonstrations.learnable={read.learnable} "
                "vectors replace them; give the same number"
            )
        if self.plain_weight and not read.vectors:
            raise ValueError("plain_weight goes with demonstrations that are vectors; these are text")

    def setup(self, encoder: Encoder) -> None:
        """Make the projection trainable."""
        self.check_encoder(encoder.settings, len(encoder.backbone.memory_ids))
        self.inputs.setup(encoder)
        super().setup(encoder)
        assert encoder.demonstrator is not None
        encoder.demonstrator.requires_grad_(True)

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return InfoNCE of the prompted queries; `plain` is that of all queries without demonstrations."""
        single = {role: vectors[0] if vectors.ndim == 3 else vectors for role, vectors in embeddings.items()}
        plain, documents = single["query"], single["document"]
        queries = plain
        if "prompted" in single:
            places = batch["drawn"].prompted_rows
            queries = plain.index_copy(0, places, single["prompted"][: len(places)].to(plain.dtype))
        mask = self.mask_demo_negatives
        parts = compare_demonstrated(self, queries, documents, batch, mask_demonstrations=mask)
        if not self.plain_weight:
            return parts
        value = self.compare(plain, documents, batch)["loss"]
        return {**parts, "loss": parts["loss"] + self.plain_weight * value, "plain": value.detach()}
