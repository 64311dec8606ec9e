"""Learn Before Represent, first stage: predict the target from memory tokens only."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from embrew.encoder import Encoder
from embrew.losses.vocabulary import token_nll
from embrew.methods.base import (
    Batch,
    Count,
    DataRow,
    RowsKind,
    TokenObjective,
    check_target_fits,
    end_ids,
    instructions_of,
    text_ids,
    token_counts,
    usable,
)
from embrew.model.attention import Attention
from embrew.model.forward import try_two_calls
from embrew.model.frozen import trained_head
from embrew.settings.encoder import EncoderSettings
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens, select_masked

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(kw_only=True)
class Generative(TokenObjective):
    """−mean log p(y_t | visible tokens, y_<t) over targets, a token mean over the optimiser step.

    Attributes:
        end: predict EOS after the target, unless the target is truncated.
    """

    end: bool = True

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless attention is causal."""
        if settings.attention != "causal":
            raise ValueError(f"attention={settings.attention}: writing a text needs encoder.attention: causal")

    def setup(self, encoder: Encoder) -> None:
        """Train the head; raise unless the encoder is a causal LM whose tokenizer has the EOS token of `end`."""
        super().setup(encoder)
        end_ids(encoder, end=self.end)

    def attention(self, encoder: Encoder) -> Attention:
        """Return the attention pattern under which targets are predicted."""
        return encoder.attention

    def num_items(self, batch: Batch) -> dict[str, int]:
        """Return the number of target tokens."""
        return {"tokens": int(batch["text"].host.where(Segment.TARGET).sum())}

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Tensor]:
        """Return the negative log-likelihood of the targets."""
        tokens: Tokens = batch["text"]
        weight = self.item_weights(batch, encoder.device)["tokens"]
        states = encoder.backbone.hidden_states(tokens, self.attention(encoder))
        labels = select_masked(tokens.input_ids, tokens.host.where(Segment.TARGET))
        head = trained_head(encoder.backbone.causal_lm)
        scored = select_masked(states, tokens.host.predicting(Segment.TARGET))
        return {"loss": token_nll(scored, labels, *head, row_weights=weight)}


@dataclass(kw_only=True)
class Bottleneck(Generative):
    """−mean log p(y_t | Z, y_<t), Z the memory tokens of a text that the target itself cannot see.

    *Learn Before Represent* (LBR), Eq. 2: one model, one sequence of text, memory and target, causal attention, and the
    target does not attend to the text. Token mean over the optimiser step, EOS included. By the paper's figures, only
    the number of memory tokens decides how much information is kept.

    Attributes:
        target: `positive`: pairs, a question and its answer (the paper's SFT form); `text`: the text again, as far as
            it is read (PT, reconstruction); `rest`: the text after a random position (PT, prefix and suffix), up to
            which all of it is read.
        end: predict EOS after the target, unless the target is truncated.
        bos: whether the target attends to the row's first position if that is BOS (or an instruction), which cannot
            depend on the text: `visible` keeps this attention sink; `strict` hides it.
        min_tokens: smallest number of tokens before and after the random position (`rest`).
    """

    learning = "bottleneck learning"
    target: Literal["positive", "text", "rest"] = "positive"
    bos: Literal["visible", "strict"] = "visible"
    min_tokens: Count = 10

    @property
    def rows_kind(self) -> RowsKind:
        """Pairs for `positive`, texts otherwise."""
        return "pairs" if self.target == "positive" else "text"

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless attention is causal, and memory tokens are at the template's end."""
        if not memory_tokens or settings.patterns[0].tail[-1:] != ["memory"]:
            raise ValueError(
                f"template={settings.template!r}: the bottleneck is the memory right before the target; set "
                "encoder.memory_tokens and let the template end with {memory}"
            )
        if settings.attention != "causal":
            raise ValueError(
                f"attention={settings.attention}: a text that reads the target lets it through; set "
                "encoder.attention: causal"
            )

    def setup(self, encoder: Encoder) -> None:
        """Train the head; raise unless the encoder is a causal LM with room for text and target."""
        super().setup(encoder)
        encoder.backbone.check_attention(self.attention(encoder))
        if self.target == "rest":
            room = encoder.max_length["query"] - len(self._read([[]], encoder)[0].ids)
            if room < self.min_tokens:
                raise ValueError(
                    f"max_length.query={encoder.max_length['query']} leaves {room} tokens for a text, and "
                    f"min_tokens={self.min_tokens}; raise the one or lower the other"
                )
        target = encoder.max_length["document"]
        if self.target == "text":  # as much as is read of it, and EOS
            target = min(target, encoder.max_length["query"] - len(self._read([[]], encoder)[0].ids) + self.end)
        check_target_fits(encoder, encoder.max_length["query"], target)
        try_two_calls(encoder.backbone.inner)

    def attention(self, encoder: Encoder) -> Attention:
        """Return causal attention whose targets do not see the text."""
        return Attention("causal", bottleneck=self.bos)

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts that are too short to split.

        Raises:
            ValueError: no text is long enough.
        """
        if self.target != "rest":
            return dataset
        keep = [i for i, count in enumerate(token_counts(dataset, "text", encoder)) if count >= 2 * self.min_tokens]
        none = f"none of {len(dataset)} texts has {2 * self.min_tokens} tokens; lower min_tokens"
        return usable(dataset, keep, otherwise=none)

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Return `text`: the text read, memory and target. Seed and text decide the position for `rest`."""
        target = partial(target_ids, end=end_ids(encoder, end=self.end), limit=encoder.max_length["document"])
        if self.target == "positive":
            read = self._read([row["query"] for row in rows], encoder, instructions_of(rows, encoder))
            targets = [target(ids) for ids in text_ids([row["positive"] for row in rows], encoder)]
        else:
            texts = text_ids([row["text"] for row in rows], encoder)
            read = self._read(texts, encoder)
            lengths = [row.segments.count(Segment.TEXT) for row in read]
            if self.target == "text":
                pairs = zip(texts, lengths, strict=True)
                targets = [target(ids[:length], complete=length == len(ids)) for ids, length in pairs]
            else:
                splits = [self._split(ids, length, seed) for ids, length in zip(texts, lengths, strict=True)]
                read = self._read([ids[:split] for ids, split in zip(texts, splits, strict=True)], encoder)
                targets = [target(ids[split:]) for ids, split in zip(texts, splits, strict=True)]
        rows_read = zip(read, targets, strict=True)
        return {"text": Tokens.pad([row + Row.labelled(ids, Segment.TARGET) for row, ids in rows_read])}

    def _read(
        self, texts: Sequence[str] | Sequence[list[int]], encoder: Encoder, instructions: list[str] | None = None
    ) -> list[Row]:
        prompt = encoder.prompts["document"] if instructions is None else instructions
        return encoder.template.rows(texts, instruction=prompt, max_length=encoder.max_length["query"])

    def _split(self, ids: list[int], room: int, seed: int) -> int:
        """Return where to split a text: at least `min_tokens` on each side, at most `room` before."""
        last = max(min(len(ids) - self.min_tokens, room), 1)
        return random.Random(f"{seed} {ids}").randint(min(self.min_tokens, last), last)
