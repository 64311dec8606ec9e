"""Context compression: memory tokens that a frozen LM can go on from (LLM2Comp, first stage)."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from datasets import Dataset
from torch import Tensor

from embrew.distributed import sum_over_processes, world_size
from embrew.losses import token_kl, token_nll
from embrew.modeling.backbone import FrozenLM
from embrew.modeling.encoder import Encoder
from embrew.modeling.tokens import Row, Segment, Tokens
from embrew.objectives.base import HandBack, Objective

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Compression(Objective):
    """Compress a context into its memory states so that the original LM can continue, or repeat, it.

    "Learning to Compress: Unlocking the Potential of Large Language Models for Text Representation"
    (arXiv 2511.17129), Eqs. 1–5. With M̃ = f(n_1..n_a, m_1..m_k) the memory states of the encoder f and g the frozen
    original LM:

    * `kl`: KL( g(·|n_1..n_a, n_<j) ‖ g(·|M̃, n_<j) ) over the continuation and the full vocabulary; rows averaged per
      text, then over texts.
    * `nll`: −log g(n_j | M̃, n_<j) over the continuation; token mean over the whole batch.
    * `reconstruction`: −log g(n_l | M̃, n_<l) over the context itself; token mean.

    Attributes:
        divergence: which of the three.
        min_context_tokens: shortest context, BOS included, when a text is split at random.
        min_target_tokens: shortest continuation.
        include_last: score the distribution after the last continuation token too (`kl` only).
        decoder_bos: put BOS before the memory states in the decoder, where the tokenizer has one.
        nll_weight: weight of an additional `nll` term beside `kl`.
    """

    divergence: Literal["kl", "nll", "reconstruction"] = "kl"
    min_context_tokens: int = 10
    min_target_tokens: int = 10
    include_last: bool = True
    decoder_bos: bool = True
    nll_weight: float = 0.0

    def setup(self, encoder: Encoder) -> None:
        """Keep the original LM; needs memory tokens."""
        if encoder.backbone.memory is None:
            raise ValueError(
                "compression needs memory tokens; set encoder.memory_tokens and put {memory} in the template"
            )
        if self.nll_weight and self.divergence != "kl":
            raise ValueError(f"nll_weight={self.nll_weight} goes with divergence=kl, not {self.divergence}")
        if self.min_target_tokens < 1:
            raise ValueError(f"min_target_tokens={self.min_target_tokens}; a continuation has 1 token or more")
        encoder.backbone.keep_frozen_lm()
        encoder.backbone.set_attention_dropout(0.0)

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts that are too short to be split.

        Raises:
            ValueError: nothing is left.
        """
        shortest = sum(self._fewest(encoder))
        texts = list(dataset["text"])
        keep = [i for i, ids in enumerate(text_ids(texts, encoder)) if len(ids) >= shortest]
        if not keep:
            raise ValueError(f"none of {len(texts)} texts has {shortest} tokens, the least that compression can split")
        if len(keep) < len(texts):
            logger.info(
                "compression leaves out %d of %d texts shorter than %d tokens",
                len(texts) - len(keep),
                len(texts),
                shortest,
            )
        return dataset.select(keep)

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Split every text at a random site and lay out context, student and teacher.

        The site is decided by seed and text alone, so that neither a restart, nor prefetching, nor the number of
        workers can change it.
        """
        bos = Row.of(encoder.template.bos_ids, Segment.PROMPT)
        slots = len(encoder.template.memory_ids)
        limit = encoder.max_length["document"]
        room = limit - len(encoder.template.rows([[]])[0].ids)  # beside BOS, the template's words and the memory
        fewest = self._fewest(encoder)
        contexts, targets = [], []
        for ids in text_ids([row["text"] for row in rows], encoder):
            context, target = self._split(ids[: limit - len(bos.ids)], room, fewest, seed)
            contexts.append(context)
            targets.append(target)
        before = bos if self.decoder_bos else Row([], [])
        soft = before + Row.of([0] * slots, Segment.SOFT)
        batch = {
            "context": Tokens.pad(encoder.template.rows(contexts)),
            "student": Tokens.pad([soft + Row.of(target, Segment.TARGET) for target in targets]),
        }
        if self.divergence == "kl":
            batch["teacher"] = Tokens.pad(
                [
                    bos + Row.of(context, Segment.TEXT) + Row.of(target, Segment.TARGET)
                    for context, target in zip(contexts, targets, strict=True)
                ]
            )
        return batch

    def _fewest(self, encoder: Encoder) -> tuple[int, int]:
        """Fewest text tokens of a context (BOS is one of its tokens, but none of the text's) and of a continuation."""
        context = max(self.min_context_tokens - len(encoder.template.bos_ids), 1)
        return context, 0 if self.divergence == "reconstruction" else self.min_target_tokens

    def _split(self, ids: list[int], room: int, fewest: tuple[int, int], seed: int) -> tuple[list[int], list[int]]:
        """Context, of at most `room` tokens, and target of one text."""
        first, last = fewest[0], min(len(ids) - fewest[1], room)
        if last < first:
            raise ValueError(
                f"a text of {len(ids)} tokens with room for a context of {room} cannot be split into a context of "
                f"{fewest[0]} or more tokens and a continuation of {fewest[1]} or more; raise max_length or leave out "
                "short texts (min_chars)"
            )
        if self.divergence == "reconstruction":
            return ids[:last], ids[:last]
        site = random.Random(f"{seed} {ids}").randint(first, last)
        return ids[:site], ids[site:]

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Encode with the adapter on; decode, and differentiate, with it off."""
        memory = encoder.memory(batch["context"])
        training = torch.is_grad_enabled() and memory.requires_grad
        with encoder.backbone.frozen_lm() as lm:
            leaf = memory.detach().requires_grad_(training)
            loss = self.decoder_loss(lm, leaf, batch)
            if not training:
                return {"loss": loss}
            (grad,) = torch.autograd.grad(loss, leaf)
        return {"loss": HandBack.apply(memory, grad, loss.detach())}

    def decoder_loss(self, lm: FrozenLM, memory: Tensor, batch: dict[str, Any]) -> Tensor:
        """The loss as a function of the memory states `(batch, k, hidden)`, a scalar."""
        student = batch["student"].with_soft(memory)
        states = lm.hidden_states(student)
        head = lm.head
        if self.divergence == "kl":
            teacher = batch["teacher"]
            with torch.no_grad():
                teacher_states = lm.hidden_states(teacher)
            scored = student.predicting(Segment.TARGET, include_last=self.include_last)
            scored_teacher = teacher.predicting(Segment.TARGET, include_last=self.include_last)
            per_text = 1.0 / scored.sum(-1) / len(student)
            weights = per_text[:, None].expand_as(scored)[scored]
            loss = token_kl(teacher_states[scored_teacher], states[scored], *head, row_weights=weights)
            if not self.nll_weight:
                return loss
            return loss + self.nll_weight * self._nll(states, student, head)
        return self._nll(states, student, head)

    def _nll(self, states: Tensor, student: Tokens, head: tuple[Tensor, Tensor | None]) -> Tensor:
        """Token mean over the joint batch of all processes."""
        scored = student.predicting(Segment.TARGET)
        labels = student.input_ids[student.where(Segment.TARGET)]
        tokens = sum_over_processes(scored.sum())
        weights = torch.full((len(labels),), world_size() / float(tokens), device=states.device)
        return token_nll(states[scored], labels, *head, row_weights=weights)


def text_ids(texts: Sequence[str], encoder: Encoder) -> list[list[int]]:
    """Token ids of bare texts, without special tokens, none read out of the text."""
    if not texts:
        return []
    encoded = encoder.tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )
    return [list(ids) for ids in encoded["input_ids"]]
