"""What stands before every text is computed once: its keys, values and states serve all rows of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from embrew.modeling.tokens import Row, Segment

WORTHWHILE = 16  # tokens; a shorter beginning costs less than the call that would save it


def shared_beginning(rows: Sequence[Row]) -> int:
    """How many leading prompt tokens all rows have in common; 0 if that is not worth a pass of its own.

    >>> rows = [Row.of(range(20), Segment.PROMPT) + Row.of([7, 8], Segment.TEXT) for _ in range(2)]
    >>> shared_beginning(rows)
    20
    """
    if len(rows) < 2:
        return 0
    first = rows[0]
    count = next((i for i, s in enumerate(first.segments) if s != Segment.PROMPT), len(first.ids) - 1)
    for row in rows:
        count = min(count, len(row.ids) - 1)
        if row.ids[:count] != first.ids[:count]:
            count = next(i for i, (a, b) in enumerate(zip(row.ids, first.ids, strict=False)) if a != b)
        if count < WORTHWHILE:
            return 0
    return count


class Prefix:
    """Keys, values and final states of the beginning that rows share, kept from one batch of a call to the next.

    Only causal models have such a thing: under bidirectional attention a beginning depends on what follows.
    """

    def __init__(self) -> None:
        self._ids: tuple[int, ...] = ()
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._states = torch.empty(0)

    def states(self, seen: Any, embedded: Tensor, ids: Tensor, count: int) -> Tensor:
        """Final hidden states `(batch, tokens, hidden)` of a causal batch whose first `count` tokens are shared.

        Args:
            seen: the model without its head, causal.
            embedded: `(batch, tokens, hidden)` input embeddings.
            ids: `(count,)` the shared tokens.
            count: how many they are.
        """
        key = tuple(ids.tolist())
        if self._ids[:count] != key:
            cache = DynamicCache(config=seen.config)
            self._states = seen(
                inputs_embeds=embedded[:1, :count], past_key_values=cache, use_cache=True
            ).last_hidden_state
            layers: Any = cache.layers
            self._layers = [(layer.keys, layer.values) for layer in layers]
            self._ids = key
        rows = len(embedded)
        cache = DynamicCache(config=seen.config)
        for number, (keys, values) in enumerate(self._layers):
            cache.update(
                keys[..., :count, :].expand(rows, -1, -1, -1), values[..., :count, :].expand(rows, -1, -1, -1), number
            )
        places = torch.arange(count, embedded.shape[1], device=embedded.device)[None]
        rest = seen(
            inputs_embeds=embedded[:, count:], position_ids=places, past_key_values=cache, use_cache=True
        ).last_hidden_state
        return torch.cat([self._states[:, :count].expand(rows, -1, -1), rest], dim=1)


def reusable(seen: Any, count: int) -> bool:
    """Whether a beginning of so many tokens lies within every layer's window, beyond which caches drop tokens."""
    window = getattr(seen.config, "sliding_window", None)
    return window is None or count < window
