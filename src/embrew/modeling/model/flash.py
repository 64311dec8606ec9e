"""Attention patterns over packed rows as calls of flash-attention's kernel for texts of different lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embrew.modeling.model.attention import Attention
from embrew.modeling.model.packed import Array, Layout, alike, copied
from embrew.modeling.text.tokens import Segment

EVERYWHERE = (-1, -1)  # flash-attention's way of saying that there is no window


@dataclass(frozen=True)
class Call:
    """One call: some positions of each text read some positions of the same text.

    With `causal`, the last query of a text reads all its keys, the one before it all but the last, and so on.

    Attributes:
        query: which positions read, text after text; None: all.
        key: which are read, the prefix included; None: all.
        ends: 0, then where each text's queries and keys end, int32.
        longest: the most queries and the most keys of a text.
        causal: whether a query reads no key after it.
    """

    query: Tensor | None
    key: Tensor | None
    ends: tuple[Tensor, Tensor]
    longest: tuple[int, int]
    causal: bool


@dataclass(frozen=True)
class Calls:
    """The calls of a pattern.

    Attributes:
        calls: one or two.
        source: where the output of each position lies in their concatenated outputs; None: in order.
        window: positions before and after a query that layers with a sliding window read.
    """

    calls: tuple[Call, ...]
    source: Tensor | None
    window: tuple[int, int] = EVERYWHERE

    @classmethod
    def of(cls, layout: Layout, attention: Attention, device: torch.device, window: int | None) -> Calls | None:
        """Return the calls of a pattern, or None where there are none for it.

        Args:
            layout: of the packed row.
            attention: the pattern.
            device: where the indices go.
            window: the sliding window of those layers that have one, as in `Attention.visible`.
        """
        every = np.ones(layout.total, dtype=bool)
        if attention.is_causal is not None:
            reach = (window - 1, 0) if window and attention.is_causal else (window, window) if window else EVERYWHERE
            return cls((_call(layout, every, every, attention.is_causal, device),), None, reach)
        if attention.hide or (window is not None and layout.lengths.max() > window):
            return None
        later = layout.segments == (Segment.TARGET if attention.bottleneck else Segment.MEMORY)
        if not _at_the_end(layout, later):
            return None
        read = every
        if attention.bottleneck:
            read = later | (layout.segments == Segment.MEMORY)
            read = read | layout.first_prompt if attention.bottleneck == "visible" else read
        parts = [(~later, ~later, bool(attention.bottleneck)), (later, read, True)]
        calls = tuple(_call(layout, q, k, causal, device) for q, k, causal in parts if q.any())
        order = np.concatenate([np.flatnonzero(~later), np.flatnonzero(later)])
        return cls(calls, copied(np.argsort(order), device))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        dropout: float,
        scaling: float | None,
        windowed: bool,
        softcap: float | None,
    ) -> Tensor:
        """Return attention `(1, total, heads, width)` of `(1, heads, total, width)`; keys may have fewer heads.

        With `windowed`, the layer has a sliding window. The backward pass is deterministic.
        """
        from flash_attn import flash_attn_varlen_func

        q, k, v = (states[0].transpose(0, 1) for states in alike(query, key, value))
        parts = []
        for call in self.calls:
            output = flash_attn_varlen_func(
                q if call.query is None else q.index_select(0, call.query),
                k if call.key is None else k.index_select(0, call.key),
                v if call.key is None else v.index_select(0, call.key),
                *call.ends,
                *call.longest,
                dropout_p=dropout,
                softmax_scale=scaling,
                causal=call.causal,
                window_size=self.window if windowed else EVERYWHERE,
                softcap=softcap or 0.0,
                deterministic=True,
            )
            parts.append(output)
        output = parts[0] if len(parts) == 1 else torch.cat(parts)
        return (output if self.source is None else output.index_select(0, self.source))[None]


def _at_the_end(layout: Layout, chosen: Array) -> bool:
    """Return whether the chosen positions of each text follow all its others."""
    same_text = layout.document[1:] == layout.document[:-1]
    return not bool((same_text & chosen[:-1] & ~chosen[1:]).any())


def _call(layout: Layout, query: Array, key: Array, causal: bool, device: torch.device) -> Call:
    """Return a call, of the texts that have any of the queries `(total,)` bool."""
    texts = len(layout.lengths)
    asking = np.bincount(layout.document[query], minlength=texts)
    key = key & (asking > 0)[layout.document]
    asked = np.bincount(layout.document[key], minlength=texts)
    asking, asked = asking[asking > 0], asked[asking > 0]
    read: Array | None = None if key.all() else np.flatnonzero(key)
    if layout.prefix:
        own = np.split(layout.prefix + np.flatnonzero(key), np.cumsum(asked)[:-1])
        read = np.concatenate([part for text in own for part in (np.arange(layout.prefix), text)])
        asked = asked + layout.prefix
    return Call(
        query=None if query.all() else copied(np.flatnonzero(query), device),
        key=None if read is None else copied(read, device),
        ends=(_ends(asking, device), _ends(asked, device)),
        longest=(int(asking.max()), int(asked.max())),
        causal=causal,
    )


def _ends(lengths: Array, device: torch.device) -> Tensor:
    return copied(np.concatenate([[0], np.cumsum(lengths)]), device, torch.int32)
