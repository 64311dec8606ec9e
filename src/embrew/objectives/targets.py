"""Texts that a language model is trained to predict: their ids, their end, their longest row, and their loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from embrew.losses import token_nll
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.attention import Attention
from embrew.modeling.model.frozen import trained_head
from embrew.modeling.text.tokens import Segment, Tokens


def text_ids(texts: Sequence[str], encoder: Encoder) -> list[list[int]]:
    """Token ids of bare texts, without special tokens, none read out of the text."""
    if not texts:
        return []
    encoded = encoder.tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )
    return [list(ids) for ids in encoded["input_ids"]]


def end_ids(encoder: Encoder, *, end: bool) -> list[int]:
    """Return the tokens that end a target: EOS, or none.

    Raises:
        ValueError: the tokenizer has no EOS token.
    """
    if not end:
        return []
    if encoder.tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no EOS token; set objective.end: false")
    return [encoder.tokenizer.eos_token_id]


def check_target_fits(encoder: Encoder, before: int, target: int, *, read: str = "the text that is read") -> None:
    """Raise where the longest row of a target has more tokens than the model has positions.

    Args:
        encoder: whose model reads the row.
        before: most tokens before the target.
        target: most tokens of the target, its end included.
        read: names the tokens before the target.

    Raises:
        ValueError: it has; says the length limits, and what to lower.
    """
    limits = ", ".join(f"max_length.{side}={limit}" for side, limit in encoder.max_length.items())
    encoder.backbone.check_longest(
        before + target,
        f"{limits}: {read} (up to {before} tokens) and the target behind (up to {target}) come to {before + target}",
        "lower encoder.max_length (document limits targets), so that both fit into one row",
    )


def target_count(tokens: Tokens) -> dict[str, int]:
    """How many target tokens a batch has, as `Objective.counts` returns it."""
    return {"tokens": int(tokens.where(Segment.TARGET).sum())}


def target_nll(encoder: Encoder, tokens: Tokens, attention: Attention, *, weight: float) -> Tensor:
    """−Σ_t `weight` · log p(y_t | what the attention shows, y_<t), a scalar.

    `weight` makes it the mean over the target tokens of an optimiser step, of all its micro-batches and processes.
    """
    states = encoder.backbone.hidden_states(tokens, attention)
    labels = tokens.input_ids[tokens.where(Segment.TARGET)]
    weights = torch.full((len(labels),), weight, device=states.device)
    head = trained_head(encoder.backbone.causal_lm)
    return token_nll(states[tokens.predicting(Segment.TARGET)], labels, *head, row_weights=weights)
