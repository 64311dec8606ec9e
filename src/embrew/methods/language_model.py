"""Next-token prediction on plain texts: continued pretraining on the texts of a domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from torch import Tensor

from embrew.encoder import Encoder
from embrew.methods.base import Objective
from embrew.methods.rows import usable
from embrew.methods.targets import end_ids, target_count, target_nll, text_ids
from embrew.model.attention import Attention
from embrew.settings.encoder import EncoderSettings
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens


@dataclass(kw_only=True)
class LanguageModel(Objective):
    """−mean log p(x_t | x_<t) over texts: continued pretraining, the paper's "standard PT".

    The baseline that LBR's bottleneck on texts (`bottleneck` with `target: text` or `rest`) is compared with in *Learn
    Before Represent*, Table 6. A row is BOS and the text, without the encoder's template, instructions and memory
    tokens. Token mean over the optimiser step.

    Attributes:
        end: predict EOS after a text, unless the text is truncated.
    """

    end: bool = True

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless attention is causal."""
        if settings.attention != "causal":
            raise ValueError(f"attention={settings.attention}: writing a text needs encoder.attention: causal")

    def setup(self, encoder: Encoder) -> None:
        """Train the head; raise unless the encoder is a causal LM."""
        encoder.backbone.check_decoder("next-token prediction")
        super().setup(encoder)
        end_ids(encoder, end=self.end)  # raises without an EOS token
        encoder.backbone.set_attention_dropout(0.0)
        encoder.backbone.train_head()

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts without a token to predict.

        Raises:
            ValueError: no text is long enough.
        """
        shortest = 1 if encoder.template.bos_ids else 2
        keep = [i for i, ids in enumerate(text_ids(list(dataset["text"]), encoder)) if len(ids) >= shortest]
        none = f"none of {len(dataset)} texts has {shortest} tokens; there is nothing to predict"
        return usable(dataset, keep, otherwise=none)

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Return `text`: BOS and the text as TARGET; without BOS, the first token of the text is not predicted."""
        begin = Row.of(encoder.template.bos_ids, Segment.PROMPT)
        end = end_ids(encoder, end=self.end)
        limit, read = encoder.max_length["document"] - len(begin.ids), 0 if begin.ids else 1
        made = []
        for ids in text_ids([row["text"] for row in rows], encoder):
            kept = target_ids(ids, end=end, limit=limit)
            made.append(begin + Row.of(kept[:read], Segment.TEXT) + Row.of(kept[read:], Segment.TARGET))
        return {"text": Tokens.pad(made)}

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return the number of target tokens."""
        return target_count(batch["text"])

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return the negative log-likelihood of the texts."""
        weight = self.unit_weights(batch, encoder.device)["tokens"]
        return {"loss": target_nll(encoder, batch["text"], Attention("causal"), weight=weight)}
