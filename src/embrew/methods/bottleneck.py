"""Information-bottleneck generative learning: predict the target from memory tokens only (LBR, first stage)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from datasets import Dataset
from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.base import Objective
from embrew.methods.rows import RowsKind, instructions_of, usable
from embrew.methods.settings import Count
from embrew.methods.targets import check_target_fits, end_ids, target_count, target_nll, text_ids
from embrew.model.attention import Attention
from embrew.model.forward import try_two_calls
from embrew.settings.encoder import EncoderSettings
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens


@dataclass(kw_only=True)
class Bottleneck(Objective):
    """−mean log p(y_t | Z, y_<t), Z the memory tokens of a text that the target itself cannot see.

    *Learn Before Represent* (LBR), Eq. 2: one model, one sequence of text, memory and target, causal attention, and the
    target does not attend to the text. Token mean over the optimiser step, EOS included. By the paper's figures, only
    the number of memory tokens decides how much information is kept.

    Attributes:
        target: `positive`: pairs, a question and its answer (the paper's SFT form); `text`: the text again, as far as
            it is read (PT, reconstruction); `rest`: the text after a random position (PT, prefix and suffix), up to
            which all of it is read.
        bos: whether the target attends to the row's first position if that is BOS (or an instruction), which cannot
            depend on the text: `visible` keeps this attention sink; `strict` hides it.
        end: predict EOS after the target, unless the target is truncated.
        min_tokens: smallest number of tokens before and after the random position (`rest`).
    """

    target: Literal["positive", "text", "rest"] = "positive"
    bos: Literal["visible", "strict"] = "visible"
    end: bool = True
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
        encoder.backbone.check_decoder("bottleneck learning")
        super().setup(encoder)
        encoder.backbone.check_attention(Attention("causal", bottleneck=self.bos))
        end_ids(encoder, end=self.end)  # raises without an EOS token
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
        encoder.backbone.set_attention_dropout(0.0)
        encoder.backbone.train_head()
        try_two_calls(encoder.backbone.inner)

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts that are too short to split.

        Raises:
            ValueError: no text is long enough.
        """
        if self.target != "rest":
            return dataset
        keep = [i for i, ids in enumerate(text_ids(list(dataset["text"]), encoder)) if len(ids) >= 2 * self.min_tokens]
        none = f"none of {len(dataset)} texts has {2 * self.min_tokens} tokens; lower min_tokens"
        return usable(dataset, keep, otherwise=none)

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Return `text`: the text read, memory and target. Seed and text decide the position for `rest`."""
        end = end_ids(encoder, end=self.end)
        limit: dict[str, Any] = {"limit": encoder.max_length["document"], "end": end}
        if self.target == "positive":
            read = self._read([row["query"] for row in rows], encoder, instructions_of(rows, encoder))
            targets = [target_ids(ids, **limit) for ids in text_ids([row["positive"] for row in rows], encoder)]
        else:
            texts = text_ids([row["text"] for row in rows], encoder)
            read = self._read(texts, encoder)
            fits = [row.segments.count(Segment.TEXT) for row in read]
            if self.target == "text":
                pairs = zip(texts, fits, strict=True)
                targets = [target_ids(ids[:room], whole=room == len(ids), **limit) for ids, room in pairs]
            else:
                splits = [self._split(ids, room, seed) for ids, room in zip(texts, fits, strict=True)]
                read = self._read([ids[:at] for ids, at in zip(texts, splits, strict=True)], encoder)
                targets = [target_ids(ids[at:], **limit) for ids, at in zip(texts, splits, strict=True)]
        written = [Row.of(target, Segment.TARGET) for target in targets]
        return {"text": Tokens.pad([one + other for one, other in zip(read, written, strict=True)])}

    def _read(self, texts: Sequence[Any], encoder: Encoder, instructions: list[str] | None = None) -> list[Row]:
        asked = encoder.prompts["document"] if instructions is None else instructions
        return encoder.template.rows(texts, instruction=asked, max_length=encoder.max_length["query"])

    def _split(self, ids: list[int], room: int, seed: int) -> int:
        """Return where to split a text: at least `min_tokens` on each side, at most `room` before."""
        last = max(min(len(ids) - self.min_tokens, room), 1)
        return random.Random(f"{seed} {ids}").randint(min(self.min_tokens, last), last)

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return the number of target tokens."""
        return target_count(batch["text"])

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return the negative log-likelihood of the targets."""
        weight = self.unit_weights(batch, encoder.device)["tokens"]
        return {"loss": target_nll(encoder, batch["text"], Attention("causal", bottleneck=self.bos), weight=weight)}
