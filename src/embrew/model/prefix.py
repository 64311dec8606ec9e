"""Compute a prefix that all rows share once: its keys, values and states serve all rows."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from embrew.model.attention import PROBE_WIDTH, give_same_states, key_of, library_states, with_short_windows
from embrew.model.layers import with_configuration
from embrew.text.tokens import Row, Segment, Tokens

WORTHWHILE = 16  # tokens; a shorter prefix costs less than the separate forward pass
KEPT_BYTES = 2**28  # of all kept prefixes together: 256 MiB, of a 7B model without grouped keys 512 tokens in bfloat16
FRAME = (int(Segment.PROMPT), int(Segment.SOFT))


def shared_prefix(rows: Sequence[Row]) -> int:
    """Return the number of leading prompt positions that all rows share; 0 if they are too few for a separate pass.

    Demonstrations belong to the prompt, as tokens or as positions for vectors.

    >>> rows = [Row.labelled(range(20), Segment.PROMPT) + Row.labelled([7, 8], Segment.TEXT) for _ in range(2)]
    >>> shared_prefix(rows)
    20
    """
    if not rows:
        return 0
    first = rows[0]
    count = next((i for i, s in enumerate(first.segments) if s not in FRAME), len(first.ids) - 1)
    for row in rows:
        count = min(count, len(row.ids) - 1)
        if row.ids[:count] != first.ids[:count] or row.segments[:count] != first.segments[:count]:
            pairs = zip(row.ids, first.ids, row.segments, first.segments, strict=False)
            count = next(i for i, (a, b, s, t) in enumerate(pairs) if (a, s) != (b, t))
        if count < WORTHWHILE:
            return 0
    return count


@dataclass(frozen=True)
class PrefixStates:
    """What a model computed for the first positions of a row.

    Attributes:
        layers: keys and values of every layer, `(1, heads, count, width)` each.
        states: final hidden states `(1, count, hidden)`.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    states: Tensor

    @property
    def bytes(self) -> int:
        """Size of all its tensors."""
        return self.states.nbytes + sum(part.nbytes for pair in self.layers for part in pair)


class PrefixCache:
    """Prefixes that a model computed, the least recently used first; it must not change as long as they are used.

    Only causal models allow this: under bidirectional attention, states depend on the positions that follow. A prefix
    is reused only for exactly the same positions, so that a vector does not depend on what was embedded before it.

    Attributes:
        max_bytes: largest size of all kept prefixes together; the least recently used are dropped first, and the latest
            stays.
        hits: number of forward passes that found their prefix.
        misses: number of those that computed it.
        users: number of open blocks of `Encoder.fixed`.
    """

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.hits = self.misses = self.users = 0
        self._entries: dict[Hashable, PrefixStates] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of a model, here or in another process, is not fixed."""
        return type(None), ()

    @property
    def bytes(self) -> int:
        """Size of all kept prefixes."""
        return sum(entry.bytes for entry in list(self._entries.values()))

    def shared_by(self, tokens: Tokens, count: int) -> SharedPrefix:
        """Return the first `count` positions of a batch, which all its rows share.

        Call it with a batch on the CPU, where reading values does not wait for an accelerator.
        """
        ids, segments = tokens.input_ids[0, :count], tokens.segment_ids[0, :count]
        soft = b""
        if tokens.soft is not None:
            if tokens.soft.ndim != 2:
                raise ValueError("vectors that differ between rows cannot be shared; give a table for all rows")
            used = tokens.soft[ids[segments == Segment.SOFT]].detach().float().cpu().contiguous()
            soft = hashlib.sha256(used.numpy().tobytes()).digest()
        return SharedPrefix(self, count, (tuple(ids.tolist()), tuple(segments.tolist()), soft))

    def get_or_compute(self, key: Hashable, compute: Callable[[], PrefixStates]) -> PrefixStates:
        """Return the prefix kept under a key, else computed now."""
        cached = self._entries.get(key)
        states = compute() if cached is None else cached
        with self._lock:
            self.hits += cached is not None
            self.misses += cached is None
            self._entries.pop(key, None)
            self._entries[key] = states
            size = sum(entry.bytes for entry in self._entries.values())
            for oldest in list(self._entries)[:-1]:
                if size <= self.max_bytes:
                    break
                size -= self._entries.pop(oldest).bytes
        return states


@dataclass(frozen=True)
class SharedPrefix:
    """The prefix that all rows of a batch share."""

    prefix: PrefixCache
    count: int
    key: Hashable

    def states(self, model: Any, embed: Callable[[Tokens], Tensor], tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Return final states of the prefix `(1, count, hidden)` and of what follows it `(batch, rest, hidden)`.

        While the rest is computed, one layer's keys and values at a time are concatenated with each row's own.

        Args:
            model: the model without its head, causal.
            embed: from tokens to input embeddings.
            tokens: the batch.
        """
        first = _columns(tokens, slice(0, self.count), slice(0, 1))
        device = tokens.input_ids.device
        cast = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
        config = model.config
        key = (self.key, config.num_hidden_layers, config._attn_implementation, device, model.dtype, cast)
        computed = self.prefix.get_or_compute(key, lambda: compute_prefix(model, embed(first)))
        rest = _columns(tokens, slice(self.count, None), slice(None))
        position_ids = torch.arange(self.count, tokens.input_ids.shape[1], device=device)[None]
        states = model(
            inputs_embeds=embed(rest), position_ids=position_ids, **cache_arguments(model, computed.layers)
        ).last_hidden_state
        return computed.states, states


_SHARED: dict[Hashable, bool] = {}


def can_share(inner: PreTrainedModel) -> bool:
    """Return whether a text after a shared prefix has the states that it has in the library's call of both.

    Measured once per configuration and kernel in a process: some families keep no keys and values (GPT, RWKV), or
    count positions in another way (RoBERTa).

    Args:
        inner: the model without its head, causal.
    """

    def after_prefix(model: PreTrainedModel, embedded: Tensor, tokens: Tokens) -> Tensor:
        def embed(part: Tokens) -> Tensor:
            embeddings: Tensor = inner.get_input_embeddings()(part.input_ids)
            return embeddings.to(inner.dtype)

        return torch.cat(
            PrefixCache()
            .shared_by(tokens, PROBE_WIDTH // 2)
            .states(with_configuration(model, is_causal=True), embed, tokens),
            dim=1,
        )

    key = key_of(inner)
    if key not in _SHARED:
        _SHARED[key] = all(
            give_same_states(model, partial(library_states, model), partial(after_prefix, model), (PROBE_WIDTH + 1,))
            for model in with_short_windows(inner)
        )
    return _SHARED[key]


def cache_name(model: nn.Module) -> str:
    """Return the name of a model's argument for keys and values; transformers has renamed it in 5.24."""
    return next((name for name in signature(model.forward).parameters if name == "cache"), "past_key_values")


def compute_prefix(model: PreTrainedModel, embedded: Tensor) -> PrefixStates:
    """Return what a model computes for embeddings `(1, count, hidden)`."""
    cache = DynamicCache()  # without a configuration: layers with a window keep what is beyond it, too
    states = model(inputs_embeds=embedded, use_cache=True, **{cache_name(model): cache}).last_hidden_state
    layers: Any = cache.layers
    return PrefixStates(tuple((layer.keys, layer.values) for layer in layers), states)


def cache_arguments(model: nn.Module, layers: tuple[tuple[Tensor, Tensor], ...]) -> dict[str, Any]:
    """Return arguments of a model with which its input follows kept keys and values."""
    return {cache_name(model): Cache(layers=[_PrefixLayer(*pair) for pair in layers]), "use_cache": True}


def _columns(tokens: Tokens, columns: slice, rows: slice) -> Tokens:
    host = tokens.host
    some = Tokens(host.input_ids[rows, columns], host.segment_ids[rows, columns])
    return replace(some.to(tokens.device), soft=tokens.soft)


class _PrefixLayer(CacheLayerMixin):
    """A layer's keys and values of the prefix; each row's own follow them for one call, and are not kept."""

    is_sliding = False  # all are here; where there is a window, the mask applies it
    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys and values of a whole row."""
        rows = len(key_states)
        before = self.keys.expand(rows, -1, -1, -1), self.values.expand(rows, -1, -1, -1)
        return torch.cat([before[0], key_states], dim=-2), torch.cat([before[1], value_states], dim=-2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys, and the position of the first."""
        return self.keys.shape[-2] + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of positions before a row's own."""
        return int(self.keys.shape[-2])

    def get_max_length(self) -> int:
        """No limit."""
        return -1
