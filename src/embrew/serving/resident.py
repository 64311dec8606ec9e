"""Encoders of one language model as the server runs them: rows of several share forward passes, where they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from embrew.encoder import Encoder
from embrew.model.batching import batches_of
from embrew.resident import Resident
from embrew.serving.models import Key, ReadOptions, ServedEncoder, TokenizedTexts, check_finite
from embrew.serving.schemas import Text
from embrew.serving.settings import Settings
from embrew.text.tokens import Row


class ResidentEncoder(ServedEncoder):
    """An encoder of a resident language model; arguments, attributes and methods as of `ServedEncoder`.

    Args:
        encoder: encoder to serve.
        settings: settings of the server.
        resident: language model that it was loaded on.
    """

    def __init__(self, encoder: Encoder, settings: Settings, resident: Resident) -> None:
        super().__init__(encoder, settings)
        self.prefix.max_bytes = settings.prefix_bytes // settings.max_encoders
        self.group = Group(resident, encoder.attention.mode)

    def read(self, texts: list[Text], options: ReadOptions) -> TokenizedTexts:
        """Return the rows of texts; those without context and shared prefix may share passes with other encoders'."""
        tokenized = super().read(texts, options)
        if tokenized.key != Key() or len(self.encoder.templates) > 1:
            return replace(tokenized, key=replace(tokenized.key, model=self))
        return replace(tokenized, key=Key(model=self.group), rows=[(self, row) for (row,) in tokenized.rows])


@dataclass(frozen=True)
class Group:
    """All encoders of a resident language model with one attention pattern.

    Attributes:
        resident: the language model.
        mode: attention pattern.
    """

    resident: Resident
    mode: str

    def compute(self, key: Key, rows: Sequence[tuple[ResidentEncoder, Row]]) -> list[np.ndarray]:
        """Return float32 `(1, dimensions)` per row, neither truncated nor normalised."""
        results: list[np.ndarray] = [np.empty(0)] * len(rows)
        first = rows[0][0]
        cost, budget = first.encoder.cost, first.batch_tokens
        for batch in batches_of([row for _, row in rows], batch_size=len(rows), batch_tokens=budget, cost=cost):
            for index, result in zip(batch, self._compute([rows[i] for i in batch]), strict=True):
                results[index] = result
        return check_finite(results)

    def _compute(self, rows: Sequence[tuple[ResidentEncoder, Row]]) -> list[np.ndarray]:
        encoders = list(dict.fromkeys(encoder for encoder, _ in rows))
        if len(encoders) > 1:
            vectors = self.resident.embed_rows([encoder.encoder for encoder, _ in rows], [row for _, row in rows])
            if vectors is not None:
                return [vector.numpy()[None] for vector in vectors]
        own = {e: iter(e.compute(Key(), [[row] for encoder, row in rows if encoder is e])) for e in encoders}
        return [next(own[encoder]) for encoder, _ in rows]


class BaseAlone:
    """The language model itself, on a few tokens: what can be computed if anything can."""

    def __init__(self, resident: Resident) -> None:
        self.model = resident.model

    def compute(self, key: Key, rows: Sequence[list[int]]) -> list[np.ndarray]:
        """Return the logits of the last token per row."""
        with torch.inference_mode():
            logits = self.model(torch.tensor(rows, device=self.model.device)).logits[:, -1]
        return check_finite(list(logits.float().cpu().numpy()))

    def example(self) -> TokenizedTexts:
        """Return a text that can be computed."""
        return TokenizedTexts(Key(model=self), [[0, 1, 2, 3]], [4], [4])
