"""Losses of a frozen decoder that reads the memory of the encoder: its checks, its input, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from embrew.encoder import Encoder
from embrew.losses import token_kl, token_nll
from embrew.model.batching import embed_by_length, passes_by_length
from embrew.model.frozen import FrozenLM
from embrew.text.tokens import Segment, Tokens, at, take, upload


def check_memory(memory_tokens: int, name: str) -> None:
    """Raise if an encoder has no memory tokens; `name` is the objective that needs them."""
    if not memory_tokens:
        raise ValueError(
            f"memory_tokens=0: {name} needs memory tokens; set encoder.memory_tokens and put {{memory}} in the template"
        )


def memory_states(encoder: Encoder, tokens: Tokens) -> Tensor:
    """Return the memory states of texts, `(texts, memory tokens, hidden)`, computed in groups of similar length."""
    flat = embed_by_length(lambda group: encoder.memory(group).flatten(1), tokens, encoder.cost)
    return flat.view(len(flat), len(encoder.template.memory_ids), -1)


def target_losses(
    lm: FrozenLM,
    memory: Tensor,
    students: Tokens,
    teachers: Tokens | None,
    *,
    per_text: float,
    per_token: float,
    skip_rows: int = 0,
    include_last: bool = True,
    nll_weight: float = 0.0,
) -> Iterator[Tensor]:
    """Yield scalars, one per forward pass of the student, whose sum is the loss of the targets.

    Args:
        lm: the frozen decoder, student and teacher.
        memory: `(texts, k, hidden)`, written to the student's `SOFT` positions.
        students: rows with targets, which the student reads.
        teachers: rows with the same targets, which the teacher reads, for a divergence; None: the negative
            log-likelihood.
        per_text: weight of the divergence of a text, which is the mean over its rows.
        per_token: weight of the negative log-likelihood of a token.
        skip_rows: number of predictions at the beginning of each target without a loss.
        include_last: whether the distribution after the last token of a target is compared too.
        nll_weight: of the negative log-likelihood beside the divergence.
    """
    for group, counts in passes_by_length(students, lm.cost):
        student = students.select(group).with_soft(take(memory, group))
        here = student.host
        states = lm.hidden_states(student)
        loss = torch.zeros((), device=memory.device)
        if teachers is not None:
            teacher = teachers.select(group)
            with torch.no_grad():
                teacher_states = lm.hidden_states(teacher)
            scored, wanted = (
                after_skipped(tokens.predicting(Segment.TARGET, include_last=include_last), skip_rows)
                for tokens in (here, teacher.host)
            )
            rows = upload((per_text / scored.sum(-1, keepdim=True)).expand_as(scored)[scored], states.device)
            loss = loss + token_kl(at(teacher_states, wanted), at(states, scored), *lm.head, row_weights=rows)
        if teachers is None or nll_weight:
            labels = at(student.input_ids, after_skipped(here.where(Segment.TARGET), skip_rows))
            rows = torch.full((len(labels),), per_token, device=memory.device)
            scored = after_skipped(here.predicting(Segment.TARGET), skip_rows)
            nll = token_nll(at(states, scored), labels, *lm.head, row_weights=rows)
            loss = loss + (1.0 if teachers is None else nll_weight) * nll
        yield loss * float(counts)


def after_skipped(chosen: Tensor, skip_rows: int) -> Tensor:
    """Return a mask `(batch, tokens)` without the first `skip_rows` chosen positions of each row."""
    return chosen & (chosen.cumsum(-1) > skip_rows) if skip_rows else chosen


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
