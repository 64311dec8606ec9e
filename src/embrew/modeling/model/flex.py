"""Attention patterns over packed rows as block masks for FlexAttention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from embrew.modeling.model.attention import Attention
from embrew.modeling.model.packed import Array, Layout, copied
from embrew.modeling.text.tokens import Segment

BLOCK = 128  # positions of a side of a block, FlexAttention's default
BLOCKS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
TRANSPOSED = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")
EVERY_TEXT = -1  # the number of the text that the prefix belongs to


def block_mask(layout: Layout, attention: Attention, device: torch.device, window: int | None = None) -> BlockMask:
    """Return a pattern over a packed row: which blocks of keys a block of queries reads, and which pairs in them.

    The blocks are found on the CPU from where texts begin and end; the library's own function would compute all pairs
    on the device.
    """
    partial, full = _blocks(layout, attention, window)
    found = BlockMask.from_kv_blocks(
        *_listed(partial),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        seq_lengths=(layout.total, layout.prefix + layout.total),
    )
    tensors: dict[str, Any] = {
        name: copied(getattr(found, name).numpy(), device, torch.int32) for name in (*BLOCKS, *TRANSPOSED)
    }
    return BlockMask(
        seq_lengths=found.seq_lengths,
        BLOCK_SIZE=found.BLOCK_SIZE,
        mask_mod=_pairs(layout, attention, device, window),
        **tensors,
    )


def _pairs(
    layout: Layout, attention: Attention, device: torch.device, window: int | None
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the pattern as FlexAttention takes it: from indices of a query and a key to whether it is read.

    The same as `Attention.visible`, by the index of a position in its text.
    """
    causal, memory_causal = attention.mode == "causal", attention.mode == "memory_causal"
    before = np.arange(layout.prefix)
    text = copied(layout.document, device)
    text_read = copied(np.concatenate([np.full_like(before, EVERY_TEXT), layout.document]), device)
    place = copied(layout.place, device)
    place_read = copied(np.concatenate([before, layout.place]), device)
    segments = copied(layout.segments, device)
    segments_read = copied(np.concatenate([np.full_like(before, Segment.PROMPT), layout.segments]), device)
    through = (layout.segments == Segment.MEMORY) | (layout.segments == Segment.TARGET)
    if attention.bottleneck == "visible":
        through = through | layout.first_prompt
    passes = copied(np.concatenate([np.zeros_like(before, dtype=bool), through]), device, torch.bool)

    def read(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (text[q] == text_read[k]) | (text_read[k] == EVERY_TEXT)
        earlier = place_read[k] <= place[q]
        if causal:
            seen = seen & earlier
        if memory_causal:
            seen = seen & (earlier | (segments_read[k] != int(Segment.MEMORY)))
        if attention.bottleneck:
            seen = seen & ((segments[q] != int(Segment.TARGET)) | passes[k])
        for reader, hidden in attention.hide:
            seen = seen & ~((segments[q] == int(reader)) & (segments_read[k] == int(hidden)))
        if window is not None:
            distance = place[q] - place_read[k]
            seen = seen & (distance < window if causal else distance.abs() <= window)
        return seen | ((text[q] == text_read[k]) & (place[q] == place_read[k]))

    return read


def _blocks(layout: Layout, attention: Attention, window: int | None) -> tuple[Array, Array]:
    """Return `(query blocks, key blocks)` bool twice: pairs of blocks that are read in part, and those in full."""
    keys = layout.prefix + layout.total
    first, begin = np.arange(0, layout.total, BLOCK), np.arange(0, keys, BLOCK)
    last, end = np.minimum(first + BLOCK, layout.total) - 1, np.minimum(begin + BLOCK, keys)
    starts = layout.prefix + layout.ends[layout.document[first]]
    stops = layout.prefix + (last + 1 if attention.mode == "causal" else layout.ends[layout.document[last] + 1])
    some = (begin < stops[:, None]) & (end > starts[:, None]) | (begin < layout.prefix)
    full = np.zeros_like(some)
    if attention.is_causal is not None and window is None:
        one_text = layout.document[first] == layout.document[last]
        to = layout.prefix + (first + 1 if attention.is_causal else layout.ends[layout.document[first] + 1])
        inside = (begin >= starts[:, None]) & (end <= to[:, None]) & one_text[:, None]
        whole = (end - begin == BLOCK) & (last - first + 1 == BLOCK)[:, None]
        full = (inside | (end <= layout.prefix)) & whole
    return some & ~full, full


def _listed(blocks: Array) -> tuple[Tensor, Tensor]:
    """Return the number of blocks of each row, and their columns, as `BlockMask.from_kv_blocks` takes them."""
    columns = np.argsort(~blocks, axis=1, kind="stable")
    counts, indices = (torch.from_numpy(array.astype(np.int32)) for array in (blocks.sum(1), columns))
    return counts[None, None], indices[None, None]
