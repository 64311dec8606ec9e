"""Compression of a context into memory tokens, from which the original language model predicts a target.

With M̃ = f(context, m_1..m_k) the memory states of the encoder f, g the original LM, which is frozen, and y the target:

    kl:   L = mean over texts of mean_j KL( g(· | context, y_<j) ‖ g(· | M̃, y_<j) )
    nll:  L = mean over tokens of −log g(y_j | M̃, y_<j)

This is the first stage of two methods, which differ in contexts and targets: LLM2Comp splits a text (`llm2comp`),
AutoRegEmbed reads pairs (`autoregembed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from embrew.encoder import Encoder
from embrew.losses.vocabulary import token_kl, token_nll
from embrew.methods.autoregembed import PairedTexts
from embrew.methods.base import Batch, Count, CountOrNone, DataRow, NotNegative, RowsKind, check_target_fits
from embrew.methods.frozen_decoder import CompressionRows, FrozenDecoder
from embrew.methods.llm2comp import SplitTexts
from embrew.model.batching import passes_by_length
from embrew.model.frozen import FrozenLM
from embrew.text.tokens import Segment, Tokens, select_masked, select_rows, upload

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(kw_only=True)
class Compression(FrozenDecoder):
    """Compress a context into its memory states so that the original LM can continue, or repeat, it.

    With `rows: text`, *Learning to Compress: Unlocking the Potential of Large Language Models for Text Representation*
    (arXiv 2511.17129), Eqs. 1–5: the target is the continuation of the context, or the context again. With
    `divergence: kl`, the teacher of the latter reads the context twice.

    With `rows: pairs`, information compression of *Following the Autoregressive Nature of LLM Embeddings via
    Compression and Alignment*, section 3.2: the target is the positive (the paper: `divergence: nll`, `decoder_bos:
    false`, `end: true`).

    Attributes:
        divergence: the loss. `kl`: over the target and the full vocabulary, rows averaged per text, then over texts;
            `nll`: token mean over the whole optimiser step; `reconstruction`: another name of `nll` with `target:
            same`.
        target: target of `rows: text`. `continuation`: what follows the context is predicted; `same`: the context
            again; `both`: the loss is the mean of the losses of continuation and context, each averaged by itself.
            None: `continuation`, with `divergence: reconstruction` `same`.
        split: end of a context of `rows: text`. `token`: any token, drawn uniformly; `sentence`: an inner sentence end
            (as `data.sentences` finds them), drawn uniformly. A text without one in the range that the shortest
            context and continuation leave is split at a random token; `prepare` logs how many texts that are. None:
            `token`, but with `target: same` a text is not split, and its context is as much as can be read.
        skip_rows: number of predictions at the beginning of a target that carry no loss, the student's and the
            teacher's. Contexts that are predicted, continuations and targets of pairs have at least one token more.
        rows: kind of the rows. `text`: texts; `pairs`: a context and its target.
        end: predict EOS after the target (`pairs` only), unless the target is truncated.
        min_context_tokens: length of the shortest context, BOS included, of `rows: text`.
        min_target_tokens: length of the shortest continuation.
        include_last: compare the distribution after the last continuation token too (`kl` only).
        decoder_bos: put BOS before the memory states in the decoder; where the tokenizer adds none, EOS.
        nll_weight: weight of an additional `nll` term with `kl`.
        held_out: number of texts (of `pairs`: queries) that are set aside and not trained on, for the share of the gap
            closed (`methods.gap`), at most one in twenty; 0: none, and the share is not measured.
    """

    name = "compression"
    learning = "context compression"
    divergence: Literal["kl", "nll", "reconstruction"] = "kl"
    target: Literal["continuation", "same", "both"] | None = None
    split: Literal["token", "sentence"] | None = None
    skip_rows: CountOrNone = 0
    rows: Literal["text", "pairs"] = "text"
    end: bool = False
    min_context_tokens: CountOrNone = 10
    min_target_tokens: Count = 10
    include_last: bool = True
    nll_weight: NotNegative = 0.0
    held_out: CountOrNone = 64

    @property
    def rows_kind(self) -> RowsKind:
        """Texts or pairs, by `rows`."""
        return self.rows

    @property
    def source(self) -> SplitTexts | PairedTexts:
        """Where contexts and targets come from."""
        if self.rows == "pairs":
            return PairedTexts(end=self.end, skip_rows=self.skip_rows)
        return SplitTexts(
            target=self.target or ("same" if self.divergence == "reconstruction" else "continuation"),
            split=self.split,
            skip_rows=self.skip_rows,
            min_context_tokens=self.min_context_tokens,
            min_target_tokens=self.min_target_tokens,
        )

    @property
    def targets(self) -> dict[str, str]:
        """What is predicted of each row, with the suffix of the names of its parts in a batch."""
        return self.source.targets

    def check_settings(self) -> None:
        """Raise where targets and rows do not go together."""
        if self.nll_weight and self.divergence != "kl":
            raise ValueError(f"nll_weight={self.nll_weight} goes with divergence=kl, not {self.divergence}")
        if self.rows == "pairs" and self.divergence == "reconstruction":
            raise ValueError("rows=pairs has its own targets; divergence=reconstruction repeats the context")
        for name, value in {"target": self.target, "split": self.split}.items():
            if self.rows == "pairs" and value is not None:
                raise ValueError(f"rows=pairs has its own targets; {name}={value} goes with rows=text")
        if self.divergence == "reconstruction" and self.target not in (None, "same"):
            raise ValueError(
                f"divergence=reconstruction is divergence=nll with target=same; with target={self.target}, set "
                "divergence=nll"
            )
        if self.end and self.rows == "text":
            raise ValueError("end goes with rows=pairs; the first part of a split text has no end")
        if self.held_out == 1:
            raise ValueError("held_out=1; the control of a share is another text's memory, so give 0, or 2 or more")

    def check_lengths(self, encoder: Encoder) -> None:
        """Raise if no text could be read and split, or a row of the original LM exceeds the model's positions."""
        source = self.source
        source.check_lengths(encoder)
        before, target = len(self.before_target(encoder).ids), source.longest_target(encoder)
        check_target_fits(encoder, before, target, read="BOS and memory tokens in the decoder")
        if self.divergence == "kl" and (longest := source.longest_teacher(encoder)) is not None:
            check_target_fits(encoder, *longest, read="what the original LM reads")

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts that are too short to split, and pairs whose target has no token with a loss.

        Raises:
            ValueError: no text is long enough, or no target.
        """
        return self.source.prepare(dataset, encoder)

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Return `context`, `student` and `teacher`, of texts or of pairs; with `target: both` two of the latter.

        Seed and text decide where a text is split, so it does not depend on resuming, prefetching or the number of
        workers.
        """
        parts = self.parts(rows, encoder, seed=seed)
        soft = self.before_target(encoder)
        batch = {"context": Tokens.pad(parts.contexts)}
        for suffix, targets in parts.targets.items():
            batch["student" + suffix] = Tokens.pad([soft + target for target in targets])
            if self.divergence == "kl":
                teacher = zip(parts.uncompressed, targets, strict=True)
                batch["teacher" + suffix] = Tokens.pad([context + target for context, target in teacher])
        return batch

    def parts(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> CompressionRows:
        """Return what the encoder, the original LM and the decoder read of each row, from which batches are made."""
        return self.source.parts(rows, encoder, seed=seed)

    def passes(self, encoder: Encoder, batch: Batch) -> tuple[list[Tokens], list[Tokens]]:
        """Return contexts and students, and teachers, which have no gradient."""
        suffixes = self.targets.values()
        teachers = [batch["teacher" + suffix] for suffix in suffixes] if self.divergence == "kl" else []
        return [batch["context"], *(batch["student" + suffix] for suffix in suffixes)], teachers

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of texts, over which `kl` is a mean, and of scored target tokens, for the others."""
        counts = {"texts": len(batch["student"])}
        for suffix in self.targets.values():
            target = batch["student" + suffix].host.where(Segment.TARGET)
            counts["tokens" + suffix] = int(self._scored(target).sum())
        return counts

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of the contexts' memory states."""
        return {"loss": self.total_loss(encoder, batch["context"], partial(self.decoder_losses, batch=batch))}

    def decoder_losses(self, lm: FrozenLM, memory: Tensor, batch: Batch) -> Iterator[Tensor]:
        """Yield scalars, one per group of similar length, whose sum is the loss of memories `(batch, k, hidden)`."""
        weights, targets = self.unit_weights(batch, memory.device), self.targets
        for suffix in targets.values():
            students: Tokens = batch["student" + suffix]
            for group, counts in passes_by_length(students, lm.cost):
                student = students.select(group).with_soft(select_rows(memory, group))
                states = lm.hidden_states(student)
                loss = torch.zeros((), device=memory.device)
                if self.divergence == "kl":
                    teacher = batch["teacher" + suffix].select(group)
                    loss = loss + self._kl(lm, states, student, teacher, weights["texts"])
                if self.divergence != "kl" or self.nll_weight:
                    nll = self._nll(lm, states, student, weights["tokens" + suffix])
                    loss = loss + (self.nll_weight if self.divergence == "kl" else 1.0) * nll
                yield loss * float(counts) / len(targets)

    def _kl(self, lm: FrozenLM, states: Tensor, student: Tokens, teacher: Tokens, weight: float) -> Tensor:
        """Return the divergence from the teacher; `weight` is that of a text, which is the mean of its rows."""
        with torch.no_grad():
            teacher_states = lm.hidden_states(teacher)
        scored, teacher_scored = (
            self._scored(tokens.host.predicting(Segment.TARGET, include_last=self.include_last))
            for tokens in (student, teacher)
        )
        weights = upload((weight / scored.sum(-1, keepdim=True)).expand_as(scored)[scored], states.device)
        teacher_rows, student_rows = select_masked(teacher_states, teacher_scored), select_masked(states, scored)
        return token_kl(teacher_rows, student_rows, *lm.head, row_weights=weights)

    def _nll(self, lm: FrozenLM, states: Tensor, student: Tokens, weight: float) -> Tensor:
        """Return the negative log-likelihood of the target; `weight` is that of a token."""
        scored = self._scored(student.host.predicting(Segment.TARGET))
        labels = select_masked(student.input_ids, self._scored(student.host.where(Segment.TARGET)))
        return token_nll(select_masked(states, scored), labels, *lm.head, row_weights=weight)

    def _scored(self, chosen: Tensor) -> Tensor:
        """Return a mask `(batch, tokens)` without the first `skip_rows` chosen positions of each row."""
        return chosen & (chosen.cumsum(-1) > self.skip_rows) if self.skip_rows else chosen
