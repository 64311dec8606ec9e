"""Context compression: memory tokens that a frozen LM continues from (LLM2Comp and AutoRegEmbed, first stages)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from datasets import Dataset
from torch import Tensor

from embrew.losses import token_kl, token_nll
from embrew.modeling.embedding.batching import passes_by_length
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.frozen import FrozenLM
from embrew.modeling.text.indexing import at, take, upload
from embrew.modeling.text.targets import target_ids
from embrew.modeling.text.tokens import Row, Segment, Tokens
from embrew.objectives.base import Objective
from embrew.objectives.frozen_decoder import PrecomputedGradient, check_memory, memory_states
from embrew.objectives.rows import RowsKind, instructions_of, usable
from embrew.objectives.settings import Count, CountOrNone, NotNegative
from embrew.objectives.targets import check_target_fits, end_ids, target_count, text_ids


@dataclass(kw_only=True)
class Compression(Objective):
    """Compress a context into its memory states so that the original LM can continue, or repeat, it.

    "Learning to Compress: Unlocking the Potential of Large Language Models for Text Representation"
    (arXiv 2511.17129), Eqs. 1–5. With M̃ = f(n_1..n_a, m_1..m_k) the memory states of the encoder f and g the frozen
    original LM:

    * `kl`: KL( g(·|n_1..n_a, n_<j) ‖ g(·|M̃, n_<j) ) over the continuation and the full vocabulary; rows averaged per
      text, then over texts.
    * `nll`: −log g(n_j | M̃, n_<j) over the continuation; token mean over the whole optimiser step.
    * `reconstruction`: −log g(n_l | M̃, n_<l) over the context itself; token mean.

    With `rows: pairs` the target comes from the data: information compression of *Following the Autoregressive Nature
    of LLM Embeddings via Compression and Alignment*, section 3.2. The query is the context, its instruction (the
    row's, by default the encoder's for queries) fills the template, and the frozen LM predicts the positive (the
    paper: `divergence: nll`, `decoder_bos: false`, `end: true`).

    Attributes:
        divergence: one of the three.
        rows: `text`: texts that are split at random; `pairs`: a context and its target.
        end: predict EOS after the target (`pairs` only), unless the target is truncated.
        min_context_tokens: length of the shortest context, BOS included, if a text is split at random.
        min_target_tokens: length of the shortest continuation.
        include_last: compare the distribution after the last continuation token too (`kl` only).
        decoder_bos: put BOS before the memory states in the decoder, if the tokenizer has one.
        nll_weight: weight of an additional `nll` term with `kl`.
    """

    divergence: Literal["kl", "nll", "reconstruction"] = "kl"
    rows: Literal["text", "pairs"] = "text"
    end: bool = False
    min_context_tokens: CountOrNone = 10
    min_target_tokens: Count = 10
    include_last: bool = True
    decoder_bos: bool = True
    nll_weight: NotNegative = 0.0

    @property
    def rows_kind(self) -> RowsKind:
        """Texts or pairs, by `rows`."""
        return self.rows

    def check_settings(self) -> None:
        """Raise where targets and rows do not go together."""
        if self.nll_weight and self.divergence != "kl":
            raise ValueError(f"nll_weight={self.nll_weight} goes with divergence=kl, not {self.divergence}")
        if self.rows == "pairs" and self.divergence == "reconstruction":
            raise ValueError("rows=pairs has its own targets; divergence=reconstruction repeats the context")
        if self.end and self.rows == "text":
            raise ValueError("end goes with rows=pairs; the first part of a split text has no end")

    def setup(self, encoder: Encoder) -> None:
        """Keep a copy of the original LM; raise unless the encoder has memory tokens."""
        encoder.backbone.check_decoder("context compression")
        check_memory(encoder, "compression")
        end_ids(encoder, end=self.end)  # raises without an EOS token
        self._check_lengths(encoder)
        encoder.keep_frozen_lm()
        encoder.backbone.set_attention_dropout(0.0)

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts that are too short to split.

        Raises:
            ValueError: no text is long enough.
        """
        if self.rows == "pairs":
            return dataset
        shortest = sum(self._fewest(encoder))
        texts = list(dataset["text"])
        keep = [i for i, ids in enumerate(text_ids(texts, encoder)) if len(ids) >= shortest]
        none = f"none of {len(texts)} texts has {shortest} tokens, the least that compression can split"
        shorter = f"compression leaves out {{}} of {{}} texts shorter than {shortest} tokens"
        return usable(dataset, keep, otherwise=none, left_out=shorter)

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Return `context`, `student` and `teacher`, of texts split at a random position, or of pairs.

        Seed and text decide the position, so it does not depend on resuming, prefetching or the number of workers.
        """
        bos = Row.of(encoder.template.bos_ids, Segment.PROMPT)
        slots = len(encoder.template.memory_ids)
        limit = encoder.max_length["document"]
        room = limit - len(encoder.template.rows([[]])[0].ids)  # without BOS, the template's words and the memory
        fewest = self._fewest(encoder)
        contexts: list[Any] = []
        targets = []
        asked: str | list[str] = ""
        if self.rows == "pairs":
            contexts = [row["query"] for row in rows]
            asked = instructions_of(rows, encoder)
            end = end_ids(encoder, end=self.end)
            written = text_ids([row["positive"] for row in rows], encoder)
            targets = [target_ids(ids, end=end, limit=limit - len(bos.ids)) for ids in written]
        else:
            for ids in text_ids([row["text"] for row in rows], encoder):
                context, target = self._split(ids[: limit - len(bos.ids)], room, fewest, seed)
                contexts.append(context)
                targets.append(target)
        before = bos if self.decoder_bos else Row([], [])
        soft = before + Row.of([0] * slots, Segment.SOFT)
        made = encoder.template.rows(contexts, instruction=asked, max_length=limit)
        batch = {
            "context": Tokens.pad(made),
            "student": Tokens.pad([soft + Row.of(target, Segment.TARGET) for target in targets]),
        }
        if self.divergence == "kl":
            batch["teacher"] = Tokens.pad(
                [
                    bos + Row.of(context, Segment.TEXT) + Row.of(target, Segment.TARGET)
                    for context, target in zip(_seen(made, contexts, encoder), targets, strict=True)
                ]
            )
        return batch

    def _check_lengths(self, encoder: Encoder) -> None:
        """Raise if the longest row of the decoder has more tokens than the model has positions."""
        template, limit = encoder.template, encoder.max_length["document"]
        bos, slots = len(template.bos_ids), len(template.memory_ids)
        target = limit - bos
        if self.divergence == "reconstruction":
            target = min(target, limit - len(template.rows([[]])[0].ids))
        elif self.rows == "text":
            target -= self._fewest(encoder)[0]
        read = "BOS and memory tokens in the decoder"
        check_target_fits(encoder, bos * self.decoder_bos + slots, target, read=read)
        if self.divergence == "kl" and self.rows == "pairs":
            context = limit - len(template.first_ids) - slots
            check_target_fits(encoder, bos + context, target, read="what the original LM reads")

    def _fewest(self, encoder: Encoder) -> tuple[int, int]:
        """Return the smallest numbers of text tokens of a context (without BOS) and of a continuation."""
        context = max(self.min_context_tokens - len(encoder.template.bos_ids), 1)
        return context, 0 if self.divergence == "reconstruction" else self.min_target_tokens

    def _split(self, ids: list[int], room: int, fewest: tuple[int, int], seed: int) -> tuple[list[int], list[int]]:
        """Return context, of at most `room` tokens, and target of one text."""
        first, last = fewest[0], min(len(ids) - fewest[1], room)
        if last < first:
            raise ValueError(
                f"a text of {len(ids)} tokens with room for a context of {room} cannot be split into a context of "
                f"{fewest[0]} or more tokens and a continuation of {fewest[1]} or more; raise max_length or leave out "
                "short texts (min_chars)"
            )
        if self.divergence == "reconstruction":
            return ids[:last], ids[:last]
        at = random.Random(f"{seed} {ids}").randint(first, last)
        return ids[:at], ids[at:]

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Encode with the adapter, decode and differentiate without it, both in groups of similar length."""
        memory = memory_states(encoder, batch["context"])
        training = torch.is_grad_enabled() and memory.requires_grad
        with encoder.backbone.frozen_lm() as lm:
            leaf = memory.detach().requires_grad_(training)
            value, grad = torch.zeros((), device=memory.device), torch.zeros_like(leaf)
            for weighted in self.decoder_losses(lm, leaf, batch):
                value = value + weighted.detach()
                if training:  # group by group, so that only one graph is held at a time
                    grad += torch.autograd.grad(weighted, leaf)[0]
            if not training:
                return {"loss": value}
        return {"loss": PrecomputedGradient.apply(memory, grad, value)}

    def decoder_losses(self, lm: FrozenLM, memory: Tensor, batch: dict[str, Any]) -> Iterator[Tensor]:
        """Yield scalars, one per forward pass, whose sum is the loss of the memory states `(batch, k, hidden)`."""
        weights = self.unit_weights(batch, memory.device)
        for group, counts in passes_by_length(batch["student"], lm.cost):
            student = batch["student"].select(group).with_soft(take(memory, group))
            here = student.host
            states = lm.hidden_states(student)
            loss = torch.zeros((), device=memory.device)
            if self.divergence == "kl":
                teacher = batch["teacher"].select(group)
                with torch.no_grad():
                    teacher_states = lm.hidden_states(teacher)
                scored = here.predicting(Segment.TARGET, include_last=self.include_last)
                scored_teacher = teacher.host.predicting(Segment.TARGET, include_last=self.include_last)
                rows = upload(
                    (weights["texts"] / scored.sum(-1, keepdim=True)).expand_as(scored)[scored], states.device
                )
                wanted = at(teacher_states, scored_teacher)
                loss = loss + token_kl(wanted, at(states, scored), *lm.head, row_weights=rows)
            if self.divergence != "kl" or self.nll_weight:
                labels = at(student.input_ids, here.where(Segment.TARGET))
                rows = torch.full((len(labels),), weights["tokens"], device=memory.device)
                nll = token_nll(at(states, here.predicting(Segment.TARGET)), labels, *lm.head, row_weights=rows)
                loss = loss + (self.nll_weight if self.divergence == "kl" else 1.0) * nll
            yield loss * float(counts)

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return the number of texts, over which `kl` is a mean, and of target tokens, for the others."""
        return {"texts": len(batch["student"]), **target_count(batch["student"])}


def _seen(made: Sequence[Row], contexts: Sequence[Any], encoder: Encoder) -> list[list[int]]:
    """Return what the teacher reads in place of the memory: split texts, or rows without BOS and memory."""
    first, memory = len(encoder.template.first_ids), set(encoder.template.memory_ids)
    return [
        context if isinstance(context, list) else [i for i in row.ids[first:] if i not in memory]
        for row, context in zip(made, contexts, strict=True)
    ]
