"""Generative learning beside Learn Before Represent: its baselines, and both of its stages in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.base import (
    Batch,
    DataRow,
    NotNegative,
    RowsKind,
    check_target_fits,
    end_ids,
    instructions_of,
    text_ids,
    token_counts,
    usable,
)
from embrew.methods.embedding import EmbeddingObjective
from embrew.methods.lbr import Bottleneck, Generative
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(kw_only=True)
class SupervisedFineTuning(Generative):
    """−mean log p(positive | query): generative learning without a bottleneck.

    The baselines "SFT" and "GL" (generative learning) of information-bottleneck generative learning: the row that an
    encoder reads, followed by the positive. Token mean over the optimiser step. Negatives are not used.

    Attributes:
        end: predict EOS after the positive, unless the positive is truncated.
    """

    learning = "supervised fine-tuning"
    rows_kind: ClassVar[RowsKind] = "pairs"

    def setup(self, encoder: Encoder) -> None:
        """Train the head; raise unless the encoder is a causal LM with room for query and positive."""
        super().setup(encoder)
        check_target_fits(encoder, encoder.max_length["query"], encoder.max_length["document"])

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Return `text`: queries as the encoder reads them, followed by their positives as TARGET."""
        queries = encoder.template.rows(
            [row["query"] for row in rows],
            instruction=instructions_of(rows, encoder),
            max_length=encoder.max_length["query"],
        )
        end = end_ids(encoder, end=self.end)
        limit = encoder.max_length["document"]
        answers = text_ids([row["positive"] for row in rows], encoder)
        written = [Row.labelled(target_ids(ids, end=end, limit=limit), Segment.TARGET) for ids in answers]
        return {"text": Tokens.pad([query + answer for query, answer in zip(queries, written, strict=True)])}


@dataclass(kw_only=True)
class LanguageModel(Generative):
    """−mean log p(x_t | x_<t) over texts: continued pretraining, the paper's "standard PT".

    The baseline that LBR's bottleneck on texts (`bottleneck` with `target: text` or `rest`) is compared with in *Learn
    Before Represent*, Table 6. A row is BOS and the text, without the encoder's template, instructions and memory
    tokens. Token mean over the optimiser step.

    Attributes:
        end: predict EOS after a text, unless the text is truncated.
    """

    learning = "next-token prediction"

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts without a token to predict.

        Raises:
            ValueError: no text is long enough.
        """
        shortest = 1 if encoder.template.bos_ids else 2
        keep = [i for i, count in enumerate(token_counts(dataset, "text", encoder)) if count >= shortest]
        none = f"none of {len(dataset)} texts has {shortest} tokens; there is nothing to predict"
        return usable(dataset, keep, otherwise=none)

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Return `text`: BOS and the text as TARGET; without BOS, the first token of the text is not predicted."""
        begin = Row.labelled(encoder.template.bos_ids, Segment.PROMPT)
        end = end_ids(encoder, end=self.end)
        limit, read = encoder.max_length["document"] - len(begin.ids), 0 if begin.ids else 1
        texts = []
        for ids in text_ids([row["text"] for row in rows], encoder):
            target = target_ids(ids, end=end, limit=limit)
            texts.append(
                begin + Row.labelled(target[:read], Segment.TEXT) + Row.labelled(target[read:], Segment.TARGET)
            )
        return {"text": Tokens.pad(texts)}


@dataclass(kw_only=True)
class Joint(Bottleneck):
    """L = L_base + λ · L_gen, the base an embedding objective on pairs, L_gen that of `Bottleneck` on the same pairs.

    *Learn Before Represent* trains one after the other, which is λ = 0, and leaves the joint form to future work: this
    form is ours. The generative loss depends on tokens, so gradients are not cached, and the batch size is
    `training.per_device_train_batch_size`.

    Attributes:
        base: the objective on embeddings, `contrastive` for LBR.
        generative_weight: λ.
    """

    base: EmbeddingObjective
    generative_weight: NotNegative = 0.1

    def check_settings(self) -> None:
        """Raise unless both read pairs."""
        super().check_settings()
        if self.base.rows_kind != "pairs" or self.target != "positive":
            raise ValueError(
                f"target={self.target!r} with a base on {self.base.rows_kind}: joint learning reads pairs; set "
                "target: positive, and a base on pairs (contrastive with positives: column)"
            )

    def setup(self, encoder: Encoder) -> None:
        """Set up both objectives."""
        super().setup(encoder)
        self.base.setup(encoder)

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Return the base's batch, and `text`: query, memory and positive concatenated."""
        return {**self.base.collate(rows, encoder, seed=seed), **super().collate(rows, encoder, seed=seed)}

    def num_items(self, batch: Batch) -> dict[str, int]:
        """Return the counts of the base, and the number of target tokens."""
        return {**self.base.num_items(batch), **super().num_items(batch)}

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Tensor]:
        """Return the sum, and its parts `contrast` and `generate`."""
        contrast, generate = self.base(encoder, batch)["loss"], super().__call__(encoder, batch)["loss"]
        parts = {"contrast": contrast.detach(), "generate": generate.detach()}
        return {"loss": contrast + self.generative_weight * generate, **parts}
