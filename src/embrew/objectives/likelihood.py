"""The loss of all objectives that write a target: negative log-likelihood of the TARGET positions of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from embrew.distributed import sum_over_processes, world_size
from embrew.losses import token_nll
from embrew.modeling.attention import Attention
from embrew.modeling.encoder import Encoder
from embrew.modeling.frozen import FrozenLM
from embrew.modeling.tokens import Segment, Tokens


def target_nll(encoder: Encoder, tokens: Tokens, attention: Attention) -> Tensor:
    """−mean log p(y_t | what the attention shows, y_<t), a scalar.

    The mean is over the target tokens of the joint batch of all processes, so that two processes equal one.
    """
    states = encoder.backbone.hidden_states(tokens, attention)
    labels = tokens.input_ids[tokens.where(Segment.TARGET)]
    every = sum_over_processes(torch.tensor(len(labels), device=states.device))
    weights = (world_size() / every.float()).expand(len(labels))
    head = FrozenLM(encoder.backbone.causal_lm).head
    return token_nll(states[tokens.predicting(Segment.TARGET)], labels, *head, row_weights=weights)
