"""Context compression: memory tokens that a frozen LM continues from (LLM2Comp and AutoRegEmbed, first stages)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from datasets import Dataset
from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.base import Objective
from embrew.methods.frozen_decoder import (
    PrecomputedGradient,
    after_skipped,
    check_memory,
    memory_states,
    target_losses,
)
from embrew.methods.rows import RowsKind, instructions_of, usable
from embrew.methods.settings import Count, CountOrNone, NotNegative
from embrew.methods.splitting import Fewest, Parts, bos_row, count_without_end, read_by_teacher, room_of, split_texts
from embrew.methods.targets import check_target_fits, end_ids, text_ids
from embrew.model.frozen import FrozenLM
from embrew.settings.encoder import EncoderSettings
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Compression(Objective):
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
        decoder_bos: put BOS before the memory states in the decoder, if the tokenizer has one.
        nll_weight: weight of an additional `nll` term with `kl`.
        held_out: number of texts (of `pairs`: queries) that are set aside and not trained on, for the share of the gap
            closed (`objectives.gap`), at most one in twenty; 0: none, and the share is not measured.
    """

    divergence: Literal["kl", "nll", "reconstruction"] = "kl"
    target: Literal["continuation", "same", "both"] | None = None
    split: Literal["token", "sentence"] | None = None
    skip_rows: CountOrNone = 0
    rows: Literal["text", "pairs"] = "text"
    end: bool = False
    min_context_tokens: CountOrNone = 10
    min_target_tokens: Count = 10
    include_last: bool = True
    decoder_bos: bool = True
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

    @property
    def _where(self) -> Literal["token", "sentence"] | None:
        """Where texts are split; None: they are not."""
        return self.split or ("token" if "continuation" in self.targets else None)

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

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless there are memory tokens."""
        check_memory(memory_tokens, "compression")

    def setup(self, encoder: Encoder) -> None:
        """Keep a copy of the original LM; raise unless the encoder is a causal LM whose texts get all memory tokens."""
        encoder.backbone.check_decoder("context compression")
        super().setup(encoder)
        encoder.template.check_all_memory("compression")
        end_ids(encoder, end=self.end)  # raises without an EOS token
        self._check_room(encoder)
        self._check_lengths(encoder)
        encoder.keep_frozen_lm()
        encoder.backbone.set_attention_dropout(0.0)

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts that are too short to split.

        Raises:
            ValueError: no text is long enough.
        """
        if self.rows == "pairs":
            return self._prepare_pairs(dataset, encoder) if self.skip_rows else dataset
        shortest, texts = sum(self._fewest(encoder)), list(dataset["text"])
        keep = [i for i, ids in enumerate(text_ids(texts, encoder)) if len(ids) >= shortest]
        none = f"none of {len(texts)} texts has {shortest} tokens, the least that compression can split"
        shorter = f"compression leaves out {{}} of {{}} texts shorter than {shortest} tokens"
        kept = usable(dataset, keep, otherwise=none, left_out=shorter)
        if self.split == "sentence":
            without = count_without_end(list(kept["text"]), encoder, fewest=self._fewest(encoder))
            found = "have no inner sentence end where they may be split, and are split at a random token"
            logger.info("compression: %d of %d texts %s", without, len(kept), found)
        return kept

    def _prepare_pairs(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out pairs whose target has no token with a loss."""
        sizes = [len(target) for target in self._positives(list(dataset["positive"]), encoder)]
        keep = [i for i, size in enumerate(sizes) if size > self.skip_rows]
        none = f"no target of {len(dataset)} pairs has more tokens than skip_rows={self.skip_rows}; lower it"
        shorter = f"compression leaves out {{}} of {{}} pairs: no token of theirs after skip_rows={self.skip_rows}"
        return usable(dataset, keep, otherwise=none, left_out=shorter)

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Return `context`, `student` and `teacher`, of texts or of pairs; with `target: both` two of the latter.

        Seed and text decide where a text is split, so it does not depend on resuming, prefetching or the number of
        workers.
        """
        parts = self.parts(rows, encoder, seed=seed)
        before = bos_row(encoder) if self.decoder_bos else Row([], [])
        soft = before + Row.of([0] * len(encoder.template.memory_ids), Segment.SOFT)
        batch = {"context": Tokens.pad(parts.contexts)}
        for suffix, targets in parts.targets.items():
            batch["student" + suffix] = Tokens.pad([soft + target for target in targets])
            if self.divergence == "kl":
                batch["teacher" + suffix] = Tokens.pad([a + b for a, b in zip(parts.read, targets, strict=True)])
        return batch

    def parts(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> Parts:
        """Return what the encoder, the original LM and the decoder read of each row, from which batches are made."""
        contexts: list[Any]
        asked: str | list[str] = ""
        if self.rows == "pairs":
            contexts = [row["query"] for row in rows]
            asked = instructions_of(rows, encoder)
            targets = [self._positives([row["positive"] for row in rows], encoder)]
        else:
            how: dict[str, Any] = {"where": self._where, "fewest": self._fewest(encoder), "seed": seed}
            split = split_texts([row["text"] for row in rows], encoder, **how)
            contexts = [context for context, _ in split]
            targets = [contexts if name == "same" else [rest for _, rest in split] for name in self.targets]
        made = encoder.template.rows(contexts, instruction=asked, max_length=encoder.max_length["document"])
        read = [bos_row(encoder) + Row.of(ids, Segment.TEXT) for ids in read_by_teacher(made, contexts, encoder)]
        written = [[Row.of(target, Segment.TARGET) for target in several] for several in targets]
        return Parts(made, read, dict(zip(self.targets.values(), written, strict=True)))

    def _positives(self, texts: list[str], encoder: Encoder) -> list[list[int]]:
        """Return the targets of pairs."""
        end, limit = end_ids(encoder, end=self.end), room_of(encoder)[0]
        return [target_ids(ids, end=end, limit=limit) for ids in text_ids(texts, encoder)]

    def _check_room(self, encoder: Encoder) -> None:
        """Raise if no text, however long, could be read and split."""
        if self.rows == "pairs":
            return
        if encoder.template.between is not None:
            raise ValueError(
                f"template={encoder.template.pattern!r} repeats the text, and compression splits it where it is read "
                "once; leave {echo} out"
            )
        (most, room), fewest = room_of(encoder), self._fewest(encoder)
        if fewest.context > room or sum(fewest) > most:
            raise ValueError(
                f"max_length.document={encoder.max_length['document']} has room for a context of {room} tokens and a "
                f"text of {most}, and the shortest context has {fewest.context}, the shortest continuation "
                f"{fewest.continuation} (skip_rows={self.skip_rows}, min_context_tokens={self.min_context_tokens}, "
                f"min_target_tokens={self.min_target_tokens}); lower one of the three, or raise max_length"
            )

    def _check_lengths(self, encoder: Encoder) -> None:
        """Raise if the longest row of the decoder has more tokens than the model has positions."""
        template, limit = encoder.template, encoder.max_length["document"]
        bos, slots = len(template.bos_ids), len(template.memory_ids)
        most, room = room_of(encoder)
        sizes = {"positive": most, "continuation": most - self._fewest(encoder).context, "same": min(most, room)}
        target = max(sizes[name] for name in self.targets)
        read = "BOS and memory tokens in the decoder"
        check_target_fits(encoder, bos * self.decoder_bos + slots, target, read=read)
        if self.divergence == "kl" and [*self.targets] != ["continuation"]:
            context = limit - len(template.first_ids) - slots if self.rows == "pairs" else min(most, room)
            target = sizes["positive" if self.rows == "pairs" else "same"]
            check_target_fits(encoder, bos + context, target, read="what the original LM reads")

    def _fewest(self, encoder: Encoder) -> Fewest:
        """Return the smallest numbers of text tokens of a context (without BOS) and of a continuation."""
        scored = self.skip_rows + 1
        context = max(self.min_context_tokens - len(encoder.template.bos_ids), scored if "same" in self.targets else 1)
        return Fewest(context, 0 if self._where is None else max(self.min_target_tokens, scored))

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
        how = {"skip_rows": self.skip_rows, "include_last": self.include_last, "nll_weight": self.nll_weight}
        for suffix in self.targets.values():
            both = batch["student" + suffix], batch["teacher" + suffix] if self.divergence == "kl" else None
            each: dict[str, Any] = {"per_text": weights["texts"], "per_token": weights["tokens" + suffix], **how}
            for loss in target_losses(lm, memory, *both, **each):
                yield loss / len(self.targets)

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return the number of texts, over which `kl` is a mean, and of scored target tokens, for the others."""
        found = {"texts": len(batch["student"])}
        for suffix in self.targets.values():
            target = batch["student" + suffix].host.where(Segment.TARGET)
            found["tokens" + suffix] = int(after_skipped(target, self.skip_rows).sum())
        return found
