"""Perplexity per token and bits per byte of texts under a causal language model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from embrew.encoder import Encoder
from embrew.losses.vocabulary import token_log_probs
from embrew.model.frozen import FrozenLM, Head
from embrew.text.tokens import Row, Segment, Tokens


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
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
        }


def perplexity_of(
    encoder: Encoder, texts: Sequence[str], *, window: int = 512, batch_tokens: int = 4096
) -> Perplexity | None:
    """Return the perplexity of texts under an encoder's causal language model; None for BERT-type encoders.

    A text is split into windows that do not overlap, each after a BOS token (EOS if there is none), so that every token
    is predicted once. Logits are computed in float32 for a few rows at a time.

    Args:
        encoder: the encoder; its adapter is active.
        texts: texts to predict; empty ones are skipped.
        window: maximum tokens per window, the first token included.
        batch_tokens: padded tokens per batch.

    Raises:
        ValueError: all texts are empty; the tokenizer has neither BOS nor EOS; a window of fewer than two tokens.
    """
    if encoder.backbone.is_encoder:
        return None
    tokenizer = encoder.tokenizer
    begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if begin is None:
        raise ValueError("the tokenizer has neither a BOS nor an EOS token to start a text with")
    if window < 2:
        raise ValueError(f"window={window}; give 2 tokens or more")
    filled = [text for text in texts if text.strip()]
    if not filled:
        raise ValueError("all texts are empty; there is nothing to predict")
    rows = []
    for start in range(0, len(filled), 1000):
        some = filled[start : start + 1000]
        encoded = tokenizer(some, add_special_tokens=False, split_special_tokens=True, verbose=False)
        for ids in encoded["input_ids"]:
            rows += [[int(begin), *ids[i : i + window - 1]] for i in range(0, len(ids), window - 1)]
    rows.sort(key=len)
    model = FrozenLM(encoder.backbone.causal_lm)
    encoder.eval()
    tokens, nats = 0, 0.0
    with torch.inference_mode():
        for batch in _batches(rows, batch_tokens):
            read = Tokens.pad(
                [Row.labelled(ids[:1], Segment.PROMPT) + Row.labelled(ids[1:], Segment.TARGET) for ids in batch]
            )
            read = read.to(encoder.device)
            states = model.hidden_states(read)[read.predicting(Segment.TARGET)]
            labels = read.input_ids[read.where(Segment.TARGET)]
            tokens += len(labels)
            nats -= float(token_log_probs(states.float(), labels, *_float(model.head)).double().sum())
    return Perplexity(len(filled), tokens, sum(len(text.encode()) for text in filled), nats)


def _float(head: Head) -> Head:
    return head._replace(weight=head.weight.float(), bias=None if head.bias is None else head.bias.float())


def _batches(rows: Sequence[list[int]], batch_tokens: int) -> Iterator[list[list[int]]]:
    """Return rows in order of length, in batches of up to `batch_tokens` padded tokens."""
    batch: list[list[int]] = []
    for row in rows:
        if batch and (len(batch) + 1) * len(row) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
