"""Attention of the last token: its weight on the first token, and on each part of a row.

    share(layer, part) = mean over texts and heads of Σ_{j in part} A_layer[last, j]

with A the attention weights, whose rows sum to 1. A causal LM puts much weight on its first token, whatever that is (an
attention *sink*), which adds nothing to an embedding at the last token.

Source: *Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders* (EPIC), Table 9, which reports
the weight on the first token by layer, with and without demonstrations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from embrew.analysis.input_texts import Side
from embrew.encoder import Encoder
from embrew.model.attention import MODES, Attention
from embrew.model.batching import encode_rows
from embrew.model.contexts import insert
from embrew.model.forward import masks_for
from embrew.model.layers import layers_of
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

    def share_of(self, part: str) -> np.ndarray:
        """Return one part's weight by layer, `(layers,)`."""
        return np.asarray(self.shares[:, PARTS.index(part)])

    def first_token_share(self, depth: float) -> float:
        """Return the first token's weight at a relative depth: 0.5 is layer 16 of 32."""
        return float(self.share_of("first")[max(1, round(depth * len(self.shares))) - 1])

    def summary(self) -> dict[str, Any]:
        """Return the figures, for JSON."""
        layers = range(1, len(self.shares) + 1)
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "layers": list(layers),
            "depth_percent": [100 * layer / len(self.shares) for layer in layers],
            "shares": {part: self.share_of(part).tolist() for part in PARTS},
            "mean": {part: float(self.share_of(part).mean()) for part in PARTS},
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

    A layer with a sliding window shorter than the row cannot attend to the first token.

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
    layers = encoder.backbone.num_layers
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
        examples = 0 if context is None else len(context.row.ids)
        return shares_of(encoder, tokens, parts_of(tokens, examples, begin=len(encoder.template.first_ids)))

    width = layers * len(PARTS)
    with torch.inference_mode():
        by_text = encode_rows(
            rows,
            len(texts),
            shares,
            width,
            batch_size=len(texts),
            batch_tokens=batch_tokens or BATCH_TOKENS,
            show_progress_bar=show_progress_bar,
        )
    return Sink(by_text.mean(0, dtype=torch.float64).view(layers, -1).numpy(), len(texts), float(np.mean(lengths)))


def shares_of(encoder: Encoder, tokens: Tokens, parts: Tensor) -> Tensor:
    """Return the weight of each row's last token on each part, mean over heads, `(batch, layers × parts)`."""
    last = tokens.attention_mask.sum(1) - 1
    rows = torch.arange(len(tokens), device=last.device)
    sums = torch.zeros(len(tokens), encoder.backbone.num_layers, len(PARTS), device=last.device)

    def add(layer: int, weights: Tensor) -> None:
        of_last = weights[rows, :, last].float().mean(1)  # (batch, tokens)
        sums[:, layer].scatter_add_(1, parts.clamp(min=0), of_last * (parts >= 0))

    with attention_weights(encoder.backbone.inner, add):
        encoder.hidden_states(tokens)
    return sums.flatten(1)


@contextmanager
def attention_weights(inner: PreTrainedModel, read: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Within this context, pass every layer's attention weights to `read`, one layer at a time.

    Only eager attention returns weights, so the model uses it meanwhile.

    Args:
        inner: the model without its head.
        read: takes the layer's number, counted from 0, and its weights `(batch, heads, tokens, tokens)`.

    Raises:
        ValueError: a layer's attention is under no name known here, or returns no weights.
    """
    kernel, hooks = inner.config._attn_implementation, []

    def hook(layer: int, module: torch.nn.Module, output: tuple[Tensor, Tensor | None]) -> None:
        if output[1] is None:
            raise ValueError(f"{type(module).__name__} shows no attention weights")
        read(layer, output[1])

    try:
        inner.config._attn_implementation = "eager"
        for mode in MODES:
            with suppress(ValueError):  # of patterns that it does not follow
                masks_for(inner, Attention(mode))  # measured now, before there are hooks
        for number, layer in enumerate(layers_of(inner)):
            modules = [module for module in layer.modules() if type(module).__name__.endswith("Attention")]
            attention = next((module for module in modules if hasattr(module, "config")), None)
            if attention is None:
                raise ValueError(
                    f"{type(layer).__name__} has no module that is called …Attention and has a configuration"
                )
            hooks.append(attention.register_forward_hook(lambda m, _, output, n=number: hook(n, m, output)))
        yield
    finally:
        inner.config._attn_implementation = kernel
        for handle in hooks:
            handle.remove()


def parts_of(tokens: Tokens, examples: int = 0, *, begin: int = 1) -> Tensor:
    """Return the index in `PARTS` of every position, `(batch, tokens)`; -1 is padding.

    Args:
        tokens: a batch.
        examples: positions of demonstrations in every row.
        begin: position of the first of these.
    """
    segments = tokens.segment_ids
    last = tokens.attention_mask.sum(1, keepdim=True) - 1
    is_text = (segments == Segment.TEXT) | (segments == Segment.ECHO)
    parts = torch.full_like(segments, PARTS.index("prompt"))
    parts[is_text.long().cumsum(1) > 0] = PARTS.index("after")
    parts[is_text] = PARTS.index("text")
    parts[:, begin : begin + examples] = PARTS.index("demonstrations")
    parts[:, 0] = PARTS.index("first")
    parts[torch.arange(segments.shape[1], device=segments.device) == last] = PARTS.index("itself")
    return parts.masked_fill(segments == Segment.PAD, -1)
