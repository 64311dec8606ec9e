"""What objectives share whose frozen decoder reads the memory of the encoder: checks, its input, and its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.base import end_ids
from embrew.model.batching import embed_by_length
from embrew.text.tokens import Row, Segment, Tokens


def check_memory(memory_tokens: int, name: str) -> None:
    """Raise if an encoder has no memory tokens; `name` is the objective that needs them."""
    if not memory_tokens:
        raise ValueError(
            f"memory_tokens=0: {name} needs memory tokens; set encoder.memory_tokens and put {{memory}} in the template"
        )


def setup_frozen_decoder(encoder: Encoder, name: str, *, end: bool) -> None:
    """Keep a copy of the original LM and switch attention dropout off, for the objective `name`.

    Raises:
        ValueError: texts get some of the memory tokens only, or there is no EOS token and `end` needs it.
    """
    encoder.template.check_all_memory(name)
    end_ids(encoder, end=end)
    encoder.keep_frozen_lm()
    encoder.backbone.set_attention_dropout(0.0)


def decoder_row(encoder: Encoder, *, bos: bool) -> Row:
    """Return what the decoder reads before a target: BOS, and positions for the memory states."""
    begin = Row.labelled(encoder.template.bos_ids if bos else [], Segment.PROMPT)
    return begin + Row.labelled([0] * len(encoder.template.memory_ids), Segment.SOFT)


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
