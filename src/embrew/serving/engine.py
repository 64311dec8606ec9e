"""The computing side of an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch

from embrew.encoder import Encoder
from embrew.encoding import embed
from embrew.model.batching import NotFinite, batches_of
from embrew.model.contexts import PreparedContext
from embrew.serving.asked import Engine, Key
from embrew.text.tokens import Row, Tokens

NOT_FINITE = "a NaN or infinite embedding; the model's weights are broken"


class EncoderEngine(Engine):
    """Vectors, and states of tokens, of rows that an `EncoderReader` made.

    Args:
        encoder: what computes them.
        batch_tokens: padded tokens per forward pass.
        prefix_bytes: memory for the keys and values of prompts.
    """

    def __init__(self, encoder: Encoder, *, batch_tokens: int, prefix_bytes: int) -> None:
        self.encoder, self.batch_tokens = encoder, batch_tokens
        self._stack = ExitStack()  # never closed: a served model does not change
        self.prefix = self._stack.enter_context(encoder.fixed())
        self.prefix.most = prefix_bytes

    def compute(self, key: Key, rows: Sequence[Sequence[Row]]) -> list[np.ndarray]:
        """Return float32 `(templates, dimensions)` per text, neither truncated nor normalised; or its states."""
        context = None if key.context is None else self.encoder.contexts[key.context]
        if key.states:
            return self._states(key, [each[0] for each in rows], context)
        try:
            parts = [
                embed(
                    self.encoder,
                    lambda start, stop, of_template=of_template: list(of_template[start:stop]),  # type: ignore[misc]
                    len(of_template),
                    context=context,
                    num_layers=key.num_layers,
                    batch_size=None,
                    batch_tokens=self.batch_tokens,
                )
                for of_template in zip(*rows, strict=True)
            ]
        except NotFinite:  # its text is named by its place in the batch, which says nothing to a client
            raise ValueError(NOT_FINITE) from None
        return list(torch.stack(parts, dim=1).numpy())

    def counts(self) -> dict[str, int]:
        """Return how often prefixes were found and computed, and the bytes that are kept."""
        prefix = self.prefix
        return {"prefix_hits": prefix.hits, "prefix_misses": prefix.misses, "prefix_bytes": prefix.bytes}

    def _states(self, key: Key, rows: Sequence[Row], context: PreparedContext | None) -> list[np.ndarray]:
        """Return the final states of each row's tokens, float32 `(tokens, hidden)`."""
        found: list[np.ndarray] = [np.empty(0)] * len(rows)
        for batch in batches_of(rows, batch_size=len(rows), batch_tokens=self.batch_tokens, cost=self.encoder.cost):
            tokens = Tokens.pad([rows[i] for i in batch])
            if context is not None:
                tokens = tokens.with_soft(context.vectors)
            with torch.inference_mode():
                states = self.encoder.hidden_states(tokens.to(self.encoder.device), num_layers=key.num_layers)
            states = states.float().cpu()
            for place, i in enumerate(batch):
                found[i] = states[place][tokens.attention_mask[place].bool()].numpy()
        return check_finite(found)


def check_finite(results: list[np.ndarray]) -> list[np.ndarray]:
    """Return results whose values are all finite.

    Raises:
        ValueError: one is not.
    """
    if not all(np.isfinite(result).all() for result in results):
        raise ValueError(NOT_FINITE)
    return results
