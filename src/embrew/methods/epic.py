"""EPIC: contrastive learning whose queries follow demonstrations as vectors; and bge-en-icl, where they are text.

*Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders* (EPIC), section 2, with f the state of
EOS, I an instruction, X a text, (Q_i, P_i) the query and the passage of demonstration i, and g a small network:

    Eq. 1     e_X = f(I, X)                                                  plain embedding
    Eq. 2     f(D_1, .., D_k, I, X),  D_i = (I, Q_i, P_i)                    demonstrations as text: `InContext`
    Eq. 3     q_i = g(f(I, Q_i)),  p_i = g(f(I, P_i))                        demonstrations as vectors: `Epic`
    Eq. 4     e_X = f(E_1, .., E_k, I, X),  E_i = (I, q_i, p_i)              the prompted query
    Eqs. 5,6  L = −log φ(q, p+) / (φ(q, p+) + Σ φ(q, p−)),  φ(q, p) = exp(cos(e_q, e_p) / τ)

Passages are read as documents, without I, in Eq. 3 as in Eq. 1 (appendix A.2). g is `model.contexts.Demonstrator`;
`demonstrations` draws (Q_i, P_i) from the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from embrew.encoder import Encoder
from embrew.methods.base import Batch, CountOrNone, NotNegative
from embrew.methods.demonstrations import DemonstratedPairs, of_demonstrations
from embrew.methods.info_nce import Candidates, Contrastive
from embrew.model.context_vectors import demonstration_settings
from embrew.settings.encoder import EncoderSettings


@dataclass(kw_only=True)
class InContext(Contrastive):
    """InfoNCE whose queries follow textual demonstrations (Eq. 2), bge-en-icl (arXiv 2409.15700), section 3.

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
        return DemonstratedPairs(pairs=self.pairs, maximum=self.demonstrations, shared=self.gather)

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless the encoder reads demonstrations in the form that is trained: text, or vectors.

        With vectors, a prompt of instructions only (EPIC, Table 4a) may be text.
        """
        demonstrations, vectors = settings.demonstrations, self.inputs.vectors
        if demonstrations is None:
            raise ValueError(
                "queries are trained with demonstrations, and the encoder reads none; set encoder.demonstrations"
            )
        if not vectors and demonstrations.compress != "none":
            raise ValueError(
                f"encoder.demonstrations.compress={demonstrations.compress} puts vectors into prompts, which objective "
                "type: epic trains; or set compress: none"
            )
        if vectors and demonstrations.compress == "none" and demonstrations.format != "instruction":
            raise ValueError(
                "encoder.demonstrations.compress=none makes them plain text, which objective type: icl trains; "
                "choose what becomes a vector: pair, all, query or passage"
            )

    def setup(self, encoder: Encoder) -> None:
        """Raise where a query with its demonstrations may have more tokens than the model has positions."""
        super().setup(encoder)
        budget, query = demonstration_settings(encoder).budget, encoder.max_length["query"]
        if self.demonstrations:
            encoder.backbone.check_row_length(
                query + (float("inf") if budget is None else budget),
                f"max_length.query={query} and encoder.demonstrations.budget={budget} come to rows of "
                + ("any length" if budget is None else f"up to {query + budget} tokens"),
                "set encoder.demonstrations.budget, or max_length.query, so that both together fit",
            )

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return InfoNCE of the queries after their demonstrations."""
        return self.compare_demonstrated(embeddings["query"], embeddings["document"], batch)

    def compare_demonstrated(self, queries: Tensor, documents: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return `compare` of queries after demonstrations, and their similarity to these demonstrations."""
        candidates = self.columns(queries, documents, batch)
        in_prompt = of_demonstrations(batch, everywhere=self.gather and self.in_batch_negatives)
        excluded = in_prompt if self.mask_demo_negatives else None
        parts = self.compare(queries, documents, batch, candidates=candidates, excluded=excluded)
        if not batch["drawn"].has_any:
            return parts
        return {**parts, **demonstration_similarities(queries, candidates, in_prompt)}


@dataclass(kw_only=True)
class Epic(InContext):
    """InfoNCE whose queries follow demonstrations as vectors (Eqs. 3–6).

    Queries and documents are embedded without demonstrations, then each query again after k demonstrations, drawn as
    `DemonstratedPairs` describes. Queries and passages of these are vectors: their plain embeddings, unnormalised,
    through the encoder's projection. The loss is InfoNCE of the prompted queries, or of the plain query if k is 0.

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
            pairs=self.pairs, maximum=self.demonstrations, shared=self.gather, vectors=True, detach=detach
        )

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless the encoder reads demonstrations as vectors, and learns enough of them."""
        super().check_encoder(settings, memory_tokens)
        demonstrations = settings.demonstrations
        assert demonstrations is not None
        if demonstrations.learnable is not None and self.demonstrations > demonstrations.learnable:
            raise ValueError(
                f"demonstrations={self.demonstrations}, and encoder.demonstrations.learnable="
                f"{demonstrations.learnable} vectors replace them; give the same number"
            )
        if self.plain_weight and not demonstrations.vectors:
            raise ValueError("plain_weight goes with demonstrations that are vectors; these are text")

    def setup(self, encoder: Encoder) -> None:
        """Make the projection trainable."""
        super().setup(encoder)
        assert encoder.demonstrator is not None
        encoder.demonstrator.requires_grad_(True)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
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


@torch.no_grad()
def demonstration_similarities(queries: Tensor, candidates: Candidates, in_prompt: Tensor) -> dict[str, Tensor]:
    """Return `demo_similarity` and `other_similarity` of `InContext`; `in_prompt` as `of_demonstrations` returns it.

    NaN is the mean of no cosines, as where the passages of all demonstrations are those of other processes.
    """
    cosines = normalize(queries.float(), dim=-1) @ normalize(candidates.vectors.float(), dim=-1).T
    columns = torch.arange(in_prompt.shape[1], device=in_prompt.device)
    passages = in_prompt & (columns < candidates.positives)
    others = in_prompt.any(-1, keepdim=True) & ~in_prompt & (columns != candidates.labels[:, None])
    sides = {"demo_similarity": passages, "other_similarity": others}
    return {name: (cosines * chosen).sum() / chosen.sum() for name, chosen in sides.items()}
