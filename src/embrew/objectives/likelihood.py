"""The loss of all objectives that write a target: negative log-likelihood of the TARGET positions of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from embrew.losses import token_nll
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.attention import Attention
from embrew.modeling.model.frozen import trained_head
from embrew.modeling.text.tokens import Segment, Tokens


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
