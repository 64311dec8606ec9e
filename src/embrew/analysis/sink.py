"""Attention of the last token: its weight on the first token, and on each part of a row.

A causal LM puts much attention weight on its first token, whatever that is (an attention *sink*), which adds nothing to
an embedding at the last token. *Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders*
(EPIC), Table 9, reports the weight on the first token by layer, with and without demonstrations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embrew.analysis.attention_weights import read_attention
from embrew.analysis.vectors import Side
from embrew.encoder import Encoder
from embrew.model.batching import encode_rows
from embrew.model.contexts import insert
from embrew.text.tokens import Row, Segment, Tokens

PARTS = ("first", "prompt", "demonstrations", "text", "after", "itself")
BATCH_TOKENS = 2048  # a layer's weights have heads × this × longest row entries


@dataclass(frozen=True)
class Sink:
    """Attention weights of the last token, by layer and part of the row.

    Attributes:
        shares: `(layers, parts)` float64, parts as in `PARTS`; every row sums to 1. `first`: the first token (BOS,
            where the tokenizer has one); `prompt`: other words before the text; `demonstrations`: those of a context,
            instructions included; `text`: the text and its repetition; `after`: words and memory tokens after it;
            `itself`: the last token.
        texts: number of texts of the mean.
        tokens: mean number of tokens of a row, without padding.
    """

    shares: np.ndarray
    texts: int
    tokens: float

    def of(self, part: str) -> np.ndarray:
        """Return one part's weight by layer, `(layers,)`."""
        column: np.ndarray = self.shares[:, PARTS.index(part)]
        return column

    def at(self, depth: float, part: str = "first") -> float:
        """Return a part's weight at a relative depth: 0.5 is layer 16 of 32."""
        return float(self.of(part)[max(1, round(depth * len(self.shares))) - 1])

    def summary(self) -> dict[str, Any]:
        """Return the figures, for JSON."""
        layers = range(1, len(self.shares) + 1)
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "layers": list(layers),
            "depth_percent": [100 * layer / len(self.shares) for layer in layers],
            "shares": {part: self.of(part).tolist() for part in PARTS},
            "mean": {part: float(self.of(part).mean()) for part in PARTS},
        }


def sink_of(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    prompt_name: str | None = None,
    side: Side = "text",
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> Sink:
    """Return the last token's attention weights by layer and part of the row, mean over heads and texts.

    Weights come from eager attention, the only kernel that returns them; a layer's are summed before the next layer's
    are computed. A layer with a sliding window shorter than the row cannot attend to the first token.

    Args:
        encoder: an encoder with a single template.
        texts: texts to encode.
        prompt_name: prompt or context before the texts; None: no prompt, whatever the encoder's default is.
        side: `document` uses the length limit of documents.
        batch_tokens: padded tokens per batch; default: 2,048.
        show_progress_bar: show a progress bar.

    Raises:
        ValueError: an unknown prompt name, several templates, no texts, or no attention weights to read.
    """
    if len(encoder.templates) > 1:
        raise ValueError(f"this encoder has {len(encoder.templates)} templates; give one with a single template")
    if not texts:
        raise ValueError("no texts; give one or more, since the weights are a mean over texts")
    limit = encoder.max_length["document"] if side == "document" else encoder.max_seq_length
    instruction, context = ("", None) if prompt_name is None else encoder.resolve_prompt(prompt_name)
    examples = 0 if context is None else len(context.row.ids)
    layers, width = encoder.backbone.num_layers, len(PARTS)
    lengths: list[int] = []
    encoder.eval()

    def rows(start: int, stop: int) -> list[Row]:
        batch = encoder.template.rows(texts[start:stop], instruction=instruction, max_length=limit, first=start)
        if context is not None:
            batch = insert(batch, context.row, encoder.template)
        lengths.extend(len(row.ids) for row in batch)
        return batch

    def shares(tokens: Tokens, _: int) -> Tensor:
        tokens = (tokens if context is None else tokens.with_soft(context.vectors)).to(encoder.device)
        parts = parts_of(tokens, examples=examples, begin=len(encoder.template.first_ids))
        last = tokens.attention_mask.sum(1) - 1
        each = torch.arange(len(tokens), device=last.device)
        sums = torch.zeros(len(tokens), layers, width, device=last.device)

        def read(layer: int, weights: Tensor) -> None:
            of_last = weights[each, :, last].float().mean(1)  # (batch, tokens), mean over heads
            sums[:, layer - 1].scatter_add_(1, parts.clamp(min=0), of_last * (parts >= 0))

        backbone = encoder.backbone
        read_attention(backbone.inner, backbone.embed(tokens), tokens, encoder.attention, read)
        return sums.flatten(1)

    with torch.inference_mode():
        every = encode_rows(
            rows,
            len(texts),
            shares,
            layers * width,
            batch_size=len(texts),
            batch_tokens=batch_tokens or BATCH_TOKENS,
            show_progress_bar=show_progress_bar,
        )
    mean = every.mean(0, dtype=torch.float64).view(layers, width).numpy()
    return Sink(mean, len(texts), float(np.mean(lengths)))


def parts_of(tokens: Tokens, *, examples: int = 0, begin: int = 1) -> Tensor:
    """Return the index in `PARTS` of every position, `(batch, tokens)`; -1 is padding.

    Args:
        tokens: a batch.
        examples: positions of demonstrations in every row.
        begin: position of the first of these.
    """
    segments = tokens.segment_ids
    at = torch.arange(segments.shape[1], device=segments.device)
    last = tokens.attention_mask.sum(1, keepdim=True) - 1
    is_text = (segments == Segment.TEXT) | (segments == Segment.ECHO)
    begun = is_text.long().cumsum(1) > 0
    behind = begun & ~is_text
    parts = torch.full_like(segments, PARTS.index("prompt"))
    parts[behind] = PARTS.index("after")
    parts[is_text] = PARTS.index("text")
    parts[:, begin : begin + examples] = PARTS.index("demonstrations")
    parts[:, 0] = PARTS.index("first")
    parts[at == last] = PARTS.index("itself")
    return parts.masked_fill(segments == Segment.PAD, -1)
