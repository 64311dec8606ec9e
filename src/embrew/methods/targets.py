"""Target texts that a language model predicts: token ids, EOS, the check of their length, and the loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from embrew.encoder import Encoder
from embrew.losses import token_nll
from embrew.model.attention import Attention
from embrew.model.frozen import trained_head
from embrew.text.tokens import Segment, Tokens, at


def text_ids(texts: Sequence[str], encoder: Encoder) -> list[list[int]]:
    """Return token ids of texts without special tokens; the names of special tokens in a text stay text."""
    if not texts:
        return []
    encoded = encoder.tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )
    return [list(ids) for ids in encoded["input_ids"]]


def end_ids(encoder: Encoder, *, end: bool) -> list[int]:
    """Return the tokens that end a target: EOS, or none without `end`.

    Raises:
        ValueError: the tokenizer has no EOS token.
    """
    if not end:
        return []
    if encoder.tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no EOS token; set objective.end: false")
    return [encoder.tokenizer.eos_token_id]


def check_target_fits(encoder: Encoder, before: int, target: int, *, read: str = "the text that is read") -> None:
    """Raise if the longest row with a target has more tokens than the model has positions.

    Args:
        encoder: the encoder whose model reads the row.
        before: largest number of tokens before the target.
        target: largest number of tokens of the target, EOS included.
        read: name of the tokens before the target, for the message.

    Raises:
        ValueError: the row is too long; the message names the length limits and what to lower.
    """
    limits = ", ".join(f"max_length.{side}={limit}" for side, limit in encoder.max_length.items())
    encoder.backbone.check_longest(
        before + target,
        f"{limits}: {read} (up to {before} tokens) and the target after (up to {target}) add up to {before + target}",
        "lower encoder.max_length (document limits targets), so that both fit into one row",
    )


def target_count(tokens: Tokens) -> dict[str, int]:
    """Return the number of target tokens in a batch, as `Objective.counts`."""
    return {"tokens": int(tokens.host.where(Segment.TARGET).sum())}


def target_nll(encoder: Encoder, tokens: Tokens, attention: Attention, *, weight: float) -> Tensor:
    """Return −Σ_t `weight` · log p(y_t | visible tokens, y_<t), a scalar.

    `weight` makes it the mean over the target tokens of an optimiser step, over all micro-batches and processes.
    """
    states = encoder.backbone.hidden_states(tokens, attention)
    labels = at(tokens.input_ids, tokens.host.where(Segment.TARGET))
    weights = torch.full((len(labels),), weight, device=states.device)
    head = trained_head(encoder.backbone.causal_lm)
    return token_nll(at(states, tokens.host.predicting(Segment.TARGET)), labels, *head, row_weights=weights)
