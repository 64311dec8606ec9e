"""Supervised fine-tuning: an LM learns to write the positive after the query, and is read as an encoder afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from embrew.modeling.encoder import Encoder
from embrew.modeling.text.targets import target_ids
from embrew.modeling.text.tokens import Row, Segment, Tokens
from embrew.objectives.base import Objective, RowsKind
from embrew.objectives.compression import text_ids
from embrew.objectives.lengths import check_target_fits
from embrew.objectives.likelihood import target_count, target_nll


@dataclass(kw_only=True)
class SupervisedFineTuning(Objective):
    """−mean log p(positive | query): generative learning without a bottleneck.

    The baselines "SFT" and "GL" (generative learning) that information-bottleneck generative learning is compared with:
    the row an encoder reads, with the positive behind it. Token mean over the optimiser step. Negatives are not used.

    Attributes:
        end: whether the end of the positive is predicted too, as an EOS token; not where the positive is truncated.
    """

    kind: ClassVar[RowsKind] = "pairs"
    end: bool = True

    def setup(self, encoder: Encoder) -> None:
        """Needs a causal LM under causal attention."""
        encoder.backbone.check_decoder("supervised fine-tuning")
        if not encoder.attention.is_causal:
            raise ValueError(f"attention={encoder.attention.mode}: writing a text needs encoder.attention: causal")
        if self.end and encoder.tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no EOS token; set objective.end: false")
        check_target_fits(encoder, encoder.max_length["query"], encoder.max_length["document"])
        encoder.backbone.set_attention_dropout(0.0)
        encoder.backbone.train_head()

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """`text`: queries as the encoder reads them, with their positives as TARGET."""
        asked = [encoder.prompts["query"] if row.get("instruction") is None else row["instruction"] for row in rows]
        queries = encoder.template.rows(
            [row["query"] for row in rows], instruction=asked, max_length=encoder.max_length["query"]
        )
        end = [encoder.tokenizer.eos_token_id] if self.end else []
        limit = encoder.max_length["document"]
        answers = text_ids([row["positive"] for row in rows], encoder)
        written = [Row.of(target_ids(ids, end=end, limit=limit), Segment.TARGET) for ids in answers]
        return {"text": Tokens.pad([query + answer for query, answer in zip(queries, written, strict=True)])}

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Target tokens."""
        return target_count(batch["text"])

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Negative log-likelihood of the positives."""
        weight = self.unit_weights(batch, encoder.device)["tokens"]
        return {"loss": target_nll(encoder, batch["text"], encoder.attention, weight=weight)}
