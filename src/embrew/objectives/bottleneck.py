"""Information-bottleneck generative learning: the target is written from memory tokens alone (LBR, first stage)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from datasets import Dataset
from torch import Tensor

from embrew.modeling.attention import Attention
from embrew.modeling.encoder import Encoder
from embrew.modeling.tokens import Row, Segment, Tokens
from embrew.objectives.base import Objective, RowsKind
from embrew.objectives.compression import text_ids
from embrew.objectives.likelihood import target_count, target_nll


@dataclass(kw_only=True)
class Bottleneck(Objective):
    """−mean log p(y_t | Z, y_<t), Z the memory tokens of a text that the target itself cannot see.

    *Learn Before Represent* (LBR), Eq. 2: one model, one sequence of text, memory and target, causal attention, and a
    wall between target and text. Token mean over the optimiser step, the end of the target included. By the paper's own
    figures nothing but the size of the memory trades off what is kept.

    Attributes:
        target: `positive`: pairs, a question and its answer (the paper's SFT form); `text`: the text itself, once more
            (PT, reconstruction); `rest`: what follows after a random place in it (PT, prefix and suffix).
        bos: whether the target may read the row's first position where that is BOS (or an instruction), which cannot
            know the text: `visible` keeps the place on which models rest their attention; `strict` hides it.
        end: the end of the target counts, as an EOS token.
        min_tokens: fewest tokens on each side of the place (`rest`).
    """

    target: Literal["positive", "text", "rest"] = "positive"
    bos: Literal["visible", "strict"] = "visible"
    end: bool = True
    min_tokens: int = 10

    @property
    def rows_kind(self) -> RowsKind:
        """Pairs for `positive`, texts otherwise."""
        return "pairs" if self.target == "positive" else "text"

    def setup(self, encoder: Encoder) -> None:
        """Needs a causal LM under causal attention, with memory tokens at the end of its template."""
        encoder.backbone.check_decoder("bottleneck learning")
        if encoder.backbone.memory is None or encoder.template.tail[-1:] != ["memory"]:
            raise ValueError(
                f"template={encoder.template.pattern!r}: the bottleneck is the memory right before the target; set "
                "encoder.memory_tokens and let the template end with {memory}"
            )
        if not encoder.attention.is_causal:
            raise ValueError(
                f"attention={encoder.attention.mode}: a text that reads the target lets it through; set "
                "encoder.attention: causal"
            )
        if self.end and encoder.tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no EOS token; set objective.end: false")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens={self.min_tokens}; a side has 1 token or more")
        encoder.backbone.set_attention_dropout(0.0)
        encoder.backbone.train_head()
        encoder.backbone.use_two_calls()

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts that are too short to be split.

        Raises:
            ValueError: nothing is left.
        """
        if self.target != "rest":
            return dataset
        keep = [i for i, ids in enumerate(text_ids(list(dataset["text"]), encoder)) if len(ids) >= 2 * self.min_tokens]
        if not keep:
            raise ValueError(f"none of {len(dataset)} texts has {2 * self.min_tokens} tokens; lower min_tokens")
        return dataset.select(keep)

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """`text`: what is read, the memory, and the target. The place of `rest` is decided by seed and text alone."""
        end = [encoder.tokenizer.eos_token_id] if self.end else []
        limit = encoder.max_length["document"] - len(end)
        shown: list[Any]
        instruction: str | list[str] = encoder.prompts["document"]
        if self.target == "positive":
            shown = [row["query"] for row in rows]
            asked = encoder.prompts["query"]
            instruction = [asked if row.get("instruction") is None else row["instruction"] for row in rows]
            targets = text_ids([row["positive"] for row in rows], encoder)
        else:
            shown = text_ids([row["text"] for row in rows], encoder)
            targets = shown
            if self.target == "rest":
                places = [
                    random.Random(f"{seed} {ids}").randint(self.min_tokens, max(len(ids) - self.min_tokens, 1))
                    for ids in shown
                ]
                targets = [ids[place:] for ids, place in zip(shown, places, strict=True)]
                shown = [ids[:place] for ids, place in zip(shown, places, strict=True)]
        read = encoder.template.rows(shown, instruction=instruction, max_length=encoder.max_length["query"])
        written = [Row.of(ids[:limit] + end, Segment.TARGET) for ids in targets]
        return {"text": Tokens.pad([one + other for one, other in zip(read, written, strict=True)])}

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Target tokens."""
        return target_count(batch["text"])

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Negative log-likelihood of the targets."""
        weight = self.unit_weights(batch, encoder.device)["tokens"]
        return {"loss": target_nll(encoder, batch["text"], Attention("causal", bottleneck=self.bos), weight=weight)}
