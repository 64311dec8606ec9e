"""Context compression: memory tokens that a frozen LM continues from (LLM2Comp and AutoRegEmbed, first stages)."""

from __future__ import annotations

import logging
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from embrew.data.sentences import sentence_spans
from embrew.encoder import Encoder
from embrew.losses.vocabulary import token_kl, token_nll
from embrew.methods.base import (
    Count,
    CountOrNone,
    NotNegative,
    RowsKind,
    check_target_fits,
    end_ids,
    instructions_of,
    text_ids,
    tokenized,
    usable,
)
from embrew.methods.frozen_decoder import FrozenDecoder, PrecomputedGradient, memory_states
from embrew.model.batching import passes_by_length
from embrew.model.frozen import FrozenLM
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens, select_masked, select_rows, upload

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


class Sizes(NamedTuple):
    """Numbers of tokens.

    Attributes:
        text: largest of a text, without BOS.
        context: largest of a context, besides the template's tokens.
        least_context: smallest of a context.
        least_rest: smallest of a continuation; 0: texts are not split.
    """

    text: int
    context: int
    least_context: int
    least_rest: int


class Parts(NamedTuple):
    """Rows of several texts.

    Attributes:
        contexts: what the encoder reads, memory tokens included.
        read: what the original LM reads in place of the memory, after BOS.
        targets: what is predicted, by the suffix of the target's name in a batch.
    """

    contexts: list[Row]
    read: list[Row]
    targets: dict[str, list[Row]]


@dataclass(kw_only=True)
class Compression(FrozenDecoder):
    """Compress a context into its memory states so that the original LM can continue, or repeat, it.

    "Learning to Compress: Unlocking the Potential of Large Language Models for Text Representation"
    (arXiv 2511.17129), Eqs. 1–5. With M̃ = f(n_1..n_a, m_1..m_k) the memory states of the encoder f and g the frozen
    original LM:

    * `kl`: KL( g(·|n_1..n_a, n_<j) ‖ g(·|M̃, n_<j) ) over the target and the full vocabulary; rows averaged per text,
      then over texts.
    * `nll`: −log g(n_j | M̃, n_<j) over the target; token mean over the whole optimiser step.
    * `reconstruction`: another name of `nll` with `target: same`, −log g(n_l | M̃, n_<l) over the context itself.

    The target is the continuation (the paper), or the context again: the teacher of `kl` then reads the context twice.

    With `rows: pairs` the target comes from the data: information compression of *Following the Autoregressive Nature
    of LLM Embeddings via Compression and Alignment*, section 3.2. The query is the context, its instruction (the
    row's, by default the encoder's for queries) fills the template, and the frozen LM predicts the positive (the
    paper: `divergence: nll`, `decoder_bos: false`, `end: true`).

    Attributes:
        divergence: one of the three.
        target: of `rows: text`. `continuation`: what follows the context is predicted; `same`: the context again;
            `both`: the loss is the mean of the losses of continuation and context, each averaged by itself. None:
            `continuation`, with `divergence: reconstruction` `same`.
        split: of `rows: text`. `token`: a context ends at any token, drawn uniformly; `sentence`: at an inner sentence
            end (as `data.sentences` finds them), drawn uniformly. A text without one in the range that the shortest
            context and continuation leave is split at a random token; `prepare` logs how many texts that are. None:
            `token`, but with `target: same` a text is not split, and its context is as much as can be read.
        skip_rows: number of predictions at the beginning of a target that carry no loss, the student's and the
            teacher's. Contexts that are predicted, continuations and targets of pairs have at least one token more.
        rows: `text`: texts; `pairs`: a context and its target.
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
    doing = "context compression"
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
    def targets(self) -> dict[str, str]:
        """What is predicted of each row, with the suffix of the names of its parts in a batch."""
        if self.rows == "pairs":
            return {"positive": ""}
        if self.target == "both":
            return {"continuation": "", "same": "_same"}
        return {self.target or ("same" if self.divergence == "reconstruction" else "continuation"): ""}

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

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts that are too short to split, and pairs whose target has no token with a loss.

        Raises:
            ValueError: no text is long enough, or no target.
        """
        count, skip = len(dataset), self.skip_rows
        if self.rows == "pairs":
            targets = self._positives(list(dataset["positive"]), encoder) if skip else []
            keep = [i for i, target in enumerate(targets) if len(target) > skip]
            none = f"no target of {count} pairs has more tokens than skip_rows={skip}; lower it"
            shorter = f"compression leaves out {{}} of {{}} pairs: no token of theirs after skip_rows={skip}"
            return usable(dataset, keep, otherwise=none, left_out=shorter) if skip else dataset
        sizes = self._sizes(encoder)
        shortest = sizes.least_context + sizes.least_rest
        keep = [i for i, ids in enumerate(text_ids(list(dataset["text"]), encoder)) if len(ids) >= shortest]
        none = f"none of {count} texts has {shortest} tokens, the least that compression can split"
        shorter = f"compression leaves out {{}} of {{}} texts shorter than {shortest} tokens"
        dataset = usable(dataset, keep, otherwise=none, left_out=shorter)
        if self.split == "sentence":
            texts = list(dataset["text"])
            ranges = zip(self._splits(text_ids(texts, encoder), encoder), sentence_ends(texts, encoder), strict=True)
            without = sum(not any(end in splits for end in ends) for splits, ends in ranges)
            what = "have no inner sentence end where they may be split, and are split at a random token"
            logger.info("compression: %d of %d texts %s", without, len(texts), what)
        return dataset

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
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
                batch["teacher" + suffix] = Tokens.pad([a + b for a, b in zip(parts.read, targets, strict=True)])
        return batch

    def parts(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> Parts:
        """Return what the encoder, the original LM and the decoder read of each row, from which batches are made.

        What the original LM reads in place of the memory has no memory tokens, EOS and SEP at its end: after an EOS it
        would predict the target as another text.
        """
        template, limit = encoder.template, encoder.max_length["document"]
        bos = Row.labelled(template.bos_ids, Segment.PROMPT)
        if self.rows == "pairs":
            queries = [row["query"] for row in rows]
            contexts = template.rows(queries, instruction=instructions_of(rows, encoder), max_length=limit)
            first, last = len(template.first_ids), len(template.tail_row.ids)
            read = [row.ids[first : len(row.ids) - last] for row in contexts]
            targets = [self._positives([row["positive"] for row in rows], encoder)]
        else:
            halves = self._split([row["text"] for row in rows], encoder, seed)
            read = [context for context, _ in halves]
            contexts = template.rows(read, instruction="", max_length=limit)
            targets = [read if name == "same" else [rest for _, rest in halves] for name in self.targets]
        written = [[Row.labelled(target, Segment.TARGET) for target in side] for side in targets]
        return Parts(
            contexts,
            [bos + Row.labelled(ids, Segment.TEXT) for ids in read],
            dict(zip(self.targets.values(), written, strict=True)),
        )

    def _split(self, texts: Sequence[str], encoder: Encoder, seed: int) -> list[tuple[list[int], list[int]]]:
        """Return token ids of context and continuation of each text, truncated where it exceeds the length limit.

        Seed and text decide the draw of the split. A text that is not split has an empty continuation.
        """
        sizes = self._sizes(encoder)
        halves: list[tuple[list[int], list[int]]] = []
        ends: list[list[int]] = sentence_ends(texts, encoder) if self.split == "sentence" else [[]] * len(texts)
        tokens = [ids[: sizes.text] for ids in text_ids(texts, encoder)]
        for ids, splits, stops in zip(tokens, self._splits(tokens, encoder), ends, strict=True):
            if not sizes.least_rest:
                halves.append((ids[: splits[-1]], []))
                continue
            draw = random.Random(f"{seed} {ids}")
            possible = [size for size in stops if size in splits]
            size = draw.choice(possible) if possible else draw.randint(splits[0], splits[-1])
            halves.append((ids[:size], ids[size:]))
        return halves

    def _splits(self, tokens: Sequence[list[int]], encoder: Encoder) -> list[range]:
        """Return the numbers of tokens that the context of each text may have."""
        most, room, least, rest = self._sizes(encoder)
        return [range(least, min(min(len(ids), most) - rest, room) + 1) for ids in tokens]

    def _sizes(self, encoder: Encoder) -> Sizes:
        """Return the limits of texts, contexts and continuations."""
        limit, bos, scored = encoder.max_length["document"], len(encoder.template.bos_ids), self.skip_rows + 1
        room = limit - len(encoder.template.rows([[]])[0].ids)
        least = max(self.min_context_tokens - bos, scored if "same" in self.targets else 1)
        is_split = self.split is not None or "continuation" in self.targets
        return Sizes(limit - bos, room, least, max(self.min_target_tokens, scored) if is_split else 0)

    def _positives(self, texts: list[str], encoder: Encoder) -> list[list[int]]:
        """Return the targets of pairs."""
        end, limit = end_ids(encoder, end=self.end), self._sizes(encoder).text
        return [target_ids(ids, end=end, limit=limit) for ids in text_ids(texts, encoder)]

    def check_lengths(self, encoder: Encoder) -> None:
        """Raise if no text could be read and split, or the decoder's longest row exceeds the model's positions."""
        template, limit = encoder.template, encoder.max_length["document"]
        most, room, least, rest = self._sizes(encoder)
        if self.rows == "text" and template.between is not None:
            raise ValueError(
                f"template={template.pattern!r} repeats the text, and compression splits it where it is read once; "
                "leave {echo} out"
            )
        if self.rows == "text" and (least > room or least + rest > most):
            raise ValueError(
                f"max_length.document={limit} has room for a context of {room} tokens and a text of {most}, and the "
                f"shortest context has {least}, the shortest continuation {rest} "
                f"(skip_rows={self.skip_rows}, min_context_tokens={self.min_context_tokens}, "
                f"min_target_tokens={self.min_target_tokens}); lower one of the three, or raise max_length"
            )
        bos, slots = len(template.bos_ids), len(template.memory_ids)
        sizes = {"positive": most, "continuation": most - least, "same": min(most, room)}
        target = max(sizes[name] for name in self.targets)
        read = "BOS and memory tokens in the decoder"
        check_target_fits(encoder, len(self.before_target(encoder).ids), target, read=read)
        if self.divergence == "kl" and [*self.targets] != ["continuation"]:
            context = limit - len(template.first_ids) - slots if self.rows == "pairs" else min(most, room)
            target = sizes["positive" if self.rows == "pairs" else "same"]
            check_target_fits(encoder, bos + context, target, read="what the original LM reads")

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
        for suffix in self.targets.values():
            students: Tokens = batch["student" + suffix]
            for group, counts in passes_by_length(students, lm.cost):
                student = students.select(group).with_soft(select_rows(memory, group))
                states = lm.hidden_states(student)
                loss = torch.zeros((), device=memory.device)
                if self.divergence == "kl":
                    teacher = batch["teacher" + suffix].select(group)
                    loss = loss + self._kl(lm, states, student, teacher, weights["texts"])
                if self.divergence != "kl" or self.nll_weight:  # Eqs. 2 and 3
                    scored = self._scored(student.host.predicting(Segment.TARGET))
                    labels = select_masked(student.input_ids, self._scored(student.host.where(Segment.TARGET)))
                    each = torch.full((len(labels),), weights["tokens" + suffix], device=states.device)
                    nll = token_nll(select_masked(states, scored), labels, *lm.head, row_weights=each)
                    loss = loss + (self.nll_weight if self.divergence == "kl" else 1.0) * nll
                yield loss * float(counts) / len(self.targets)

    def _kl(self, lm: FrozenLM, states: Tensor, student: Tokens, teacher: Tokens, weight: float) -> Tensor:
        """Return the divergence from the teacher (Eq. 5); `weight` is that of a text, which is the mean of its rows."""
        with torch.no_grad():
            teacher_states = lm.hidden_states(teacher)
        scored, wanted = (
            self._scored(tokens.host.predicting(Segment.TARGET, include_last=self.include_last))
            for tokens in (student, teacher)
        )
        rows = upload((weight / scored.sum(-1, keepdim=True)).expand_as(scored)[scored], states.device)
        return token_kl(select_masked(teacher_states, wanted), select_masked(states, scored), *lm.head, row_weights=rows)

    def _scored(self, chosen: Tensor) -> Tensor:
        """Return a mask `(batch, tokens)` without the first `skip_rows` chosen positions of each row."""
        return chosen & (chosen.cumsum(-1) > self.skip_rows) if self.skip_rows else chosen

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return the number of texts, over which `kl` is a mean, and of scored target tokens, for the others."""
        counts = {"texts": len(batch["student"])}
        for suffix in self.targets.values():
            target = batch["student" + suffix].host.where(Segment.TARGET)
            counts["tokens" + suffix] = int(self._scored(target).sum())
        return counts


def sentence_ends(texts: Sequence[str], encoder: Encoder) -> list[list[int]]:
    """Return, for each text, the numbers of tokens after which a sentence ends and another one follows.

    A token that holds the last character of a sentence belongs to it, whatever else it holds. Tokens are those of
    `text_ids`.
    """
    if not texts:
        return []
    ends = []
    encoded = tokenized(texts, encoder, return_offsets_mapping=True)
    for text, offsets in zip(texts, encoded["offset_mapping"], strict=True):
        starts = [start for start, _ in offsets]
        ends.append(sorted({bisect_left(starts, end) for _, end in sentence_spans(text)[:-1]}))
    return ends
