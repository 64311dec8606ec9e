"""How well a causal language model predicts texts: perplexity a token, and bits a byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from embrew.losses.vocabulary import token_log_probs
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.frozen import FrozenLM, Head
from embrew.modeling.text.tokens import Row, Segment, Tokens


@dataclass(frozen=True)
class Perplexity:
    """How surprising texts are to a model.

    Attributes:
        texts: how many.
        tokens: of them, predicted.
        bytes: in UTF-8, of what was predicted.
        nats: −Σ log p.
    """

    texts: int
    tokens: int
    bytes: int
    nats: float

    @property
    def perplexity(self) -> float:
        """exp(−mean log p) a token; comparable between models of one tokenizer only."""
        return math.exp(self.nats / self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """−Σ log₂ p over bytes: comparable between tokenizers, and between kinds of text."""
        return self.nats / math.log(2) / self.bytes

    def summary(self) -> dict[str, Any]:
        """All figures."""
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
    """What the language model inside an encoder makes of texts, under causal attention; None for a BERT-type encoder.

    A text is read in windows that do not overlap, each behind a BOS token (an EOS token where there is none), so that
    every token is predicted once. Logits are made a few rows at a time, in float32.

    Args:
        encoder: whose language model reads; an adapter that it carries counts.
        texts: what is read; empty ones are passed over.
        window: most tokens read at once, the first one included.
        batch_tokens: padded tokens a batch.

    Raises:
        ValueError: all texts are empty; the tokenizer has neither BOS nor EOS; a window of fewer than two tokens.
    """
    if encoder.backbone.is_encoder:
        return None
    tokenizer = encoder.tokenizer
    begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if begin is None:
        raise ValueError("the tokenizer has neither a BOS nor an EOS token to begin a text with")
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
            read = Tokens.pad([Row.of(ids[:1], Segment.PROMPT) + Row.of(ids[1:], Segment.TARGET) for ids in batch])
            read = read.to(encoder.device)
            states = model.hidden_states(read)[read.predicting(Segment.TARGET)]
            labels = read.input_ids[read.where(Segment.TARGET)]
            tokens += len(labels)
            nats -= float(token_log_probs(states.float(), labels, *_float(model.head)).double().sum())
    return Perplexity(len(filled), tokens, sum(len(text.encode()) for text in filled), nats)


def _float(head: Head) -> Head:
    return head._replace(weight=head.weight.float(), bias=None if head.bias is None else head.bias.float())


def _batches(rows: Sequence[list[int]], batch_tokens: int) -> Iterator[list[list[int]]]:
    """Rows of rising length in batches of at most so many padded tokens."""
    batch: list[list[int]] = []
    for row in rows:
        if batch and (len(batch) + 1) * len(row) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
