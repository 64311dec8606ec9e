"""Compression of a context into memory tokens, from which the original language model predicts a target.

M̃ = f(context, m_1..m_k) are the final hidden states of k memory tokens m after the context, computed by the encoder f;
g is the original LM, which is frozen and reads M̃ as soft tokens; y is the target:

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
        skip_rows: number of next-token predictions at the beginning of a target that have no loss, in student and
            teacher. Contexts that are predicted, continuations and targets of pairs have at least one token more.
        rows: kind of the rows. `text`: texts; `pairs`: a context and its target.
        end: predict EOS after the target (`pairs` only), unless the target is truncated.
        min_context_tokens: length of the shortest context, BOS included, of `rows: text`.
        min_target_tokens: length of the shortest continuation.
        include_last: compare the distribution after the last continuation token too (`kl` only).
        decoder_bos: put BOS before the memory states in the decoder; where the tokenizer adds none, EOS.
        nll_weight: weight of an additional `nll` term with `kl`.
        held_out: number of texts (of `pairs`: queries), at most one in twenty, that are not trained on. On them the
            share of the gap closed is measured (`methods.gap`): of the loss that the context itself saves the frozen
            LM, how much its memory states save. 0: none, and the share is not measured.
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
        """The targets of each row (continuation, context, …) and the suffix of each in the keys of a batch."""
        return self.source.targets

    def check_settings(self) -> None:
        """Raise if settings of the loss, the targets and the rows contradict each other."""
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
        """Raise if no text could be split within the length limit, or the frozen LM cannot read such long rows."""
        source = self.source
        source.check_lengths(encoder)
        prefix_length, target_length = len(self.before_target(encoder).ids), source.longest_target(encoder)
        check_target_fits(encoder, prefix_length, target_length, read="BOS and memory tokens in the decoder")
        if self.divergence == "kl" and (teacher_lengths := source.longest_teacher(encoder)) is not None:
            check_target_fits(encoder, *teacher_lengths, read="what the original LM reads")

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Filter out texts that are too short to split, and pairs whose target has no token with a loss.

        Raises:
            ValueError: no text is long enough, or no target.
        """
        return self.source.prepare(dataset, encoder)

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Return the batch: `context`, which the encoder reads; `student` and `teacher`, which the frozen LM reads.

        The student reads memory states and target, the teacher the context as text and the target. With `target: both`,
        there are two of each, with the suffixes in `targets`.

        Where a text is split depends on seed and text alone, not on resuming, prefetching or the number of workers.
        """
        parts = self.parts(rows, encoder, seed=seed)
        decoder_prefix = self.before_target(encoder)
        batch = {"context": Tokens.pad(parts.contexts)}
        for suffix, targets in parts.targets.items():
            batch["student" + suffix] = Tokens.pad([decoder_prefix + target for target in targets])
            if self.divergence == "kl":
                teacher = zip(parts.uncompressed, targets, strict=True)
                batch["teacher" + suffix] = Tokens.pad([context + target for context, target in teacher])
        return batch

    def parts(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> CompressionRows:
        """Return contexts, uncompressed contexts (for the teacher) and targets of rows, from which batches are made."""
        return self.source.parts(rows, encoder, seed=seed)

    def passes(self, encoder: Encoder, batch: Batch) -> tuple[list[Tokens], list[Tokens]]:
        """Return the parts of a batch that are read with gradients (contexts, students), and without (teachers)."""
        suffixes = self.targets.values()
        teachers = [batch["teacher" + suffix] for suffix in suffixes] if self.divergence == "kl" else []
        return [batch["context"], *(batch["student" + suffix] for suffix in suffixes)], teachers

    def num_items(self, batch: Batch) -> dict[str, int]:
        """Return the number of texts (`kl` is a mean over them) and of target tokens with a loss (`nll`)."""
        counts = {"texts": len(batch["student"])}
        for suffix in self.targets.values():
            target = batch["student" + suffix].host.where(Segment.TARGET)
            counts["tokens" + suffix] = int(self._without_skipped(target).sum())
        return counts

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Tensor]:
        """Return the loss that the frozen LM has on the contexts' memory states."""
        return {"loss": self.total_loss(encoder, batch["context"], partial(self.decoder_losses, batch=batch))}

    def decoder_losses(self, lm: FrozenLM, memory: Tensor, batch: Batch) -> Iterator[Tensor]:
        """Yield scalars, one per group of rows of similar length; their sum is the loss of memory states.

        Args:
            lm: the frozen LM.
            memory: memory states `(batch, k, hidden)` of the contexts.
            batch: batch as `collate` returns it, on the device.
        """
        weights, targets = self.item_weights(batch, memory.device), self.targets
        for suffix in targets.values():
            students: Tokens = batch["student" + suffix]
            for indices, is_real in passes_by_length(students, lm.cost):
                student = students.select(indices).with_soft(select_rows(memory, indices))
                states = lm.hidden_states(student)
                loss = torch.zeros((), device=memory.device)
                if self.divergence == "kl":
                    teacher = batch["teacher" + suffix].select(indices)
                    loss = loss + self._kl(lm, states, student, teacher, weights["texts"])
                if self.divergence != "kl" or self.nll_weight:
                    nll = self._nll(lm, states, student, weights["tokens" + suffix])
                    loss = loss + (self.nll_weight if self.divergence == "kl" else 1.0) * nll
                yield loss * float(is_real) / len(targets)

    def _kl(self, lm: FrozenLM, states: Tensor, student: Tokens, teacher: Tokens, text_weight: float) -> Tensor:
        """Return the KL divergence from the teacher: per text the mean over positions, times `text_weight`."""
        with torch.no_grad():
            teacher_states = lm.hidden_states(teacher)
        loss_mask, teacher_mask = (
            self._without_skipped(tokens.host.predicting(Segment.TARGET, include_last=self.include_last))
            for tokens in (student, teacher)
        )
        weights = upload((text_weight / loss_mask.sum(-1, keepdim=True)).expand_as(loss_mask)[loss_mask], states.device)
        teacher_selected = select_masked(teacher_states, teacher_mask)
        return token_kl(teacher_selected, select_masked(states, loss_mask), *lm.head, row_weights=weights)

    def _nll(self, lm: FrozenLM, states: Tensor, student: Tokens, token_weight: float) -> Tensor:
        """Return the negative log-likelihood of the target: the sum over tokens, times `token_weight`."""
        loss_mask = self._without_skipped(student.host.predicting(Segment.TARGET))
        labels = select_masked(student.input_ids, self._without_skipped(student.host.where(Segment.TARGET)))
        return token_nll(select_masked(states, loss_mask), labels, *lm.head, row_weights=token_weight)

    def _without_skipped(self, positions: Tensor) -> Tensor:
        """Return a mask `(batch, tokens)` without the first `skip_rows` positions of each row that are set."""
        return positions & (positions.cumsum(-1) > self.skip_rows) if self.skip_rows else positions
