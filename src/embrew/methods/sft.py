"""Supervised fine-tuning: a language model learns to predict the positive after the query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.base import Objective
from embrew.methods.rows import RowsKind, instructions_of
from embrew.methods.targets import check_target_fits, end_ids, target_count, target_nll, text_ids
from embrew.settings.encoder import EncoderSettings
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens


@dataclass(kw_only=True)
class SupervisedFineTuning(Objective):
    """−mean log p(positive | query): generative learning without a bottleneck.

    The baselines "SFT" and "GL" (generative learning) of information-bottleneck generative learning: the row that an
    encoder reads, followed by the positive. Token mean over the optimiser step. Negatives are not used.

    Attributes:
        end: predict EOS after the positive, unless the positive is truncated.
    """

    end: bool = True

    @property
    def rows_kind(self) -> RowsKind:
        """Pairs."""
        return "pairs"

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless attention is causal."""
        if settings.attention != "causal":
            raise ValueError(f"attention={settings.attention}: writing a text needs encoder.attention: causal")

    def setup(self, encoder: Encoder) -> None:
        """Train the head; raise unless the encoder is a causal LM."""
        encoder.backbone.check_decoder("supervised fine-tuning")
        super().setup(encoder)
        end_ids(encoder, end=self.end)  # raises without an EOS token
        check_target_fits(encoder, encoder.max_length["query"], encoder.max_length["document"])
        encoder.backbone.set_attention_dropout(0.0)
        encoder.backbone.train_head()

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Return `text`: queries as the encoder reads them, followed by their positives as TARGET."""
        asked = instructions_of(rows, encoder)
        queries = encoder.template.rows(
            [row["query"] for row in rows], instruction=asked, max_length=encoder.max_length["query"]
        )
        end = end_ids(encoder, end=self.end)
        limit = encoder.max_length["document"]
        answers = text_ids([row["positive"] for row in rows], encoder)
        written = [Row.of(target_ids(ids, end=end, limit=limit), Segment.TARGET) for ids in answers]
        return {"text": Tokens.pad([query + answer for query, answer in zip(queries, written, strict=True)])}

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return the number of target tokens."""
        return target_count(batch["text"])

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return the negative log-likelihood of the positives."""
        weight = self.unit_weights(batch, encoder.device)["tokens"]
        return {"loss": target_nll(encoder, batch["text"], encoder.attention, weight=weight)}
