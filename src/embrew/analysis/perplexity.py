"""Perplexity per token and bits per byte of texts under a causal language model.

    perplexity    = exp(−Σ log p / tokens)
    bits per byte = −Σ log₂ p / UTF-8 bytes

over all tokens of all texts, each predicted from those before it in its window. Source: *The Pile* (Gao et al., 2020),
section 3.1, for bits per byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embrew.encoder import Encoder
from embrew.evaluation.targets import scores_under
from embrew.model.attention import Attention
from embrew.text.tokens import Row, Segment

BATCH_TOKENS = 4096
WINDOW = 512  # maximum tokens of a row, the first token included


@dataclass(frozen=True)
class Perplexity:
    """Loss of a language model on texts.

    Attributes:
        texts: number of texts.
        tokens: number of predicted tokens.
        bytes: number of UTF-8 bytes of the predicted text.
        nats: −Σ log p.
    """

    texts: int
    tokens: int
    bytes: int
    nats: float

    @property
    def perplexity(self) -> float:
        """exp(−mean log p) per token; comparable only between models with the same tokenizer."""
        return math.exp(self.nats / self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """−Σ log₂ p over bytes: comparable between tokenizers, and between kinds of text."""
        return self.nats / math.log(2) / self.bytes

    def summary(self) -> dict[str, Any]:
        """Return all figures."""
        sizes = {"texts": self.texts, "tokens": self.tokens, "bytes": self.bytes}
        return {**sizes, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}


def perplexity_of(encoder: Encoder, texts: Sequence[str], *, batch_tokens: int = BATCH_TOKENS) -> Perplexity | None:
    """Return the perplexity of texts under an encoder's causal language model; None for BERT-type encoders.

    A text is split into windows that do not overlap, each after what precedes a target without a text
    (the template's `start_row`: BOS), so that every token is predicted once.

    Args:
        encoder: the encoder; its adapter is active.
        texts: texts to predict; none of them is blank.
        batch_tokens: padded tokens per batch.

    Raises:
        ValueError: no token to predict.
    """
    if encoder.backbone.is_encoder:
        return None
    first, rows = encoder.template.start_row, []
    tokenized = encoder.tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)
    for ids in tokenized["input_ids"]:
        rows += [first + Row.labelled(ids[i : i + WINDOW - 1], Segment.TARGET) for i in range(0, len(ids), WINDOW - 1)]
    if not rows:
        raise ValueError("no text has a token to predict; give texts that are not empty")
    encoder.eval()
    scores = scores_under(encoder, rows, Attention("causal"), batch_tokens=batch_tokens)
    losses = [losses_of_row for losses_of_row, _ in scores]
    nats = sum(float(losses_of_row.double().sum()) for losses_of_row in losses)
    return Perplexity(len(texts), sum(map(len, losses)), sum(len(text.encode()) for text in texts), nats)
