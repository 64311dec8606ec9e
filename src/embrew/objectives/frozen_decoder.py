"""Losses of a frozen decoder that reads the memory of the encoder: its checks, its input, and its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from embrew.modeling.embedding.batching import embed_by_length
from embrew.modeling.encoder import Encoder
from embrew.modeling.text.tokens import Tokens


def check_memory(encoder: Encoder, name: str) -> None:
    """Raise if the encoder has no memory tokens; `name` is the objective that needs them."""
    if encoder.backbone.memory is None:
        raise ValueError(f"{name} needs memory tokens; set encoder.memory_tokens and put {{memory}} in the template")
    encoder.template.check_all_memory(name)


def memory_states(encoder: Encoder, tokens: Tokens) -> Tensor:
    """Return the memory states of texts, `(texts, memory tokens, hidden)`, computed in groups of similar length."""
    flat = embed_by_length(lambda group: encoder.memory(group).flatten(1), tokens, encoder.cost)
    return flat.view(len(flat), len(encoder.template.memory_ids), -1)


class PrecomputedGradient(torch.autograd.Function):
    """A loss value L with a given gradient dL/dstates.

    A decoder can then run forward and backward under its own conditions (adapter off) on detached states, while the
    trainer calls `backward` on the result as on any loss.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, grad: Tensor, value: Tensor) -> Tensor:
        """Return the value and save the gradient."""
        ctx.save_for_backward(grad)
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the saved gradient times that of the loss."""
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None
