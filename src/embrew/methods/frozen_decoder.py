"""What objectives share whose frozen decoder reads the memory of the encoder: checks, its rows, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.base import Objective, end_ids
from embrew.model.batching import embed_by_length
from embrew.model.frozen import FrozenLM
from embrew.settings.encoder import EncoderSettings
from embrew.text.tokens import Row, Segment, Tokens


@dataclass(kw_only=True)
class FrozenDecoder(Objective):
    """An objective whose loss the original LM computes from the memory states of texts, each text with all of them.

    Attributes:
        name: name of the objective in recipes, for messages.
        learning: name of the training, for messages.
        end: predict EOS after a target, unless the target is truncated.
        decoder_bos: put BOS before the memory states in the decoder; where the tokenizer adds none, EOS.
    """

    reads_original_lm = True
    name: ClassVar[str]
    learning: ClassVar[str]
    end: bool = True
    decoder_bos: bool = True

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless there are memory tokens."""
        if not memory_tokens:
            raise ValueError(
                f"memory_tokens=0: {self.name} needs memory tokens; set encoder.memory_tokens and put {{memory}} in "
                "the template"
            )

    def check_lengths(self, encoder: Encoder) -> None:
        """Raise if the decoder's longest row exceeds the model's positions."""
        raise NotImplementedError(f"{type(self).__name__} has no check_lengths")

    def setup(self, encoder: Encoder) -> None:
        """Keep a copy of the original LM and switch attention dropout off; raise where the encoder does not fit.

        Raises:
            ValueError: it is no causal LM; rows may be too long; texts get some of the memory tokens only; or there is
                no EOS token and `end` needs it.
        """
        encoder.backbone.check_decoder(self.learning)
        super().setup(encoder)
        self.check_lengths(encoder)
        encoder.template.check_all_memory(self.name)
        end_ids(encoder, end=self.end)
        encoder.keep_frozen_lm()
        encoder.backbone.set_attention_dropout(0.0)

    def before_target(self, encoder: Encoder) -> Row:
        """Return what the decoder reads before a target: BOS or what stands for it, and positions for memory states."""
        states = Row.labelled([0] * len(encoder.template.memory_ids), Segment.SOFT)
        return encoder.template.start_row + states if self.decoder_bos else states

    def total_loss(
        self, encoder: Encoder, texts: Tokens, losses: Callable[[FrozenLM, Tensor], Iterable[Tensor]]
    ) -> Tensor:
        """Encode texts with the adapter, and sum losses of their memory states that the LM computes without it.

        Each loss is differentiated by itself, before the next is computed, so that only one graph is held at a time.
        Losses must not share one: PyTorch frees it with the first, and raises at the second.

        Args:
            encoder: encoder of the memory states.
            texts: rows with memory tokens.
            losses: function of the frozen LM and the memory states `(texts, memory tokens, hidden)`.
        """
        memory = memory_states(encoder, texts)
        training = torch.is_grad_enabled() and memory.requires_grad
        with encoder.backbone.frozen_lm() as lm:
            leaf = memory.detach().requires_grad_(training)
            value, grad = torch.zeros((), device=memory.device), torch.zeros_like(leaf)
            for loss in losses(lm, leaf):
                value = value + loss.detach()
                if training:
                    grad += torch.autograd.grad(loss, leaf)[0]
        total: Tensor = PrecomputedGradient.apply(memory, grad, value) if training else value
        return total


class CompressionRows(NamedTuple):
    """Rows of several texts.

    Attributes:
        contexts: rows that the encoder reads, memory tokens included.
        uncompressed: rows that the original LM reads in place of the memory, after BOS.
        targets: rows that are predicted, by the suffix of the target's name in a batch.
    """

    contexts: list[Row]
    uncompressed: list[Row]
    targets: dict[str, list[Row]]

    @classmethod
    def labelled(
        cls,
        contexts: list[Row],
        uncompressed: Sequence[Sequence[int]],
        targets: Mapping[str, Sequence[Sequence[int]]],
        *,
        bos: Sequence[int],
    ) -> CompressionRows:
        """Return rows of token ids: contexts as text after BOS, and targets as targets."""
        start = Row.labelled(bos, Segment.PROMPT)
        return cls(
            contexts,
            [start + Row.labelled(ids, Segment.TEXT) for ids in uncompressed],
            {name: [Row.labelled(ids, Segment.TARGET) for ids in rows] for name, rows in targets.items()},
        )


def memory_states(encoder: Encoder, tokens: Tokens) -> Tensor:
    """Return the memory states of texts, `(texts, memory tokens, hidden)`, computed in groups of similar length."""
    flat = embed_by_length(lambda group: encoder.memory_states(group).flatten(1), tokens, encoder.cost)
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
