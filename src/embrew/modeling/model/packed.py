"""Padded batches as one row without padding: where each text lies in it, and the way there and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embrew.modeling.text.indexing import upload
from embrew.modeling.text.tokens import Segment, Tokens

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layout:
    """Where the texts of a batch lie in the packed row. All of it is on the CPU, so that nothing waits for a device.

    Attributes:
        shape: rows and tokens of the padded batch.
        lengths: tokens of each text `(texts,)`; right padding is not counted.
        segments: `(total,)`: the segment of each position, text after text.
        prefix: positions before every text, whose keys and values are computed already.
    """

    shape: tuple[int, int]
    lengths: Array
    segments: Array
    prefix: int = 0

    @classmethod
    def of(cls, segment_ids: Tensor, prefix: int = 0) -> Layout:
        """Return the layout of a padded batch, of its segments `(batch, tokens)` on the CPU.

        >>> Layout.of(torch.tensor([[2, 2, 3], [2, 0, 0]])).document
        array([0, 0, 0, 1])
        """
        segments = segment_ids.numpy()
        real = segments != Segment.PAD
        return cls((segments.shape[0], segments.shape[1]), real.sum(1), segments[real], prefix)

    @property
    def total(self) -> int:
        """Positions of the packed row: those of all texts, and no padding."""
        return len(self.segments)

    def filled(self, block: int) -> Layout:
        """Return the layout with padding as one more text, up to a multiple of `block`, and to two at least.

        A kernel that is compiled for a shape then meets few kinds of shapes.
        """
        missing = max(2 * block, -(-self.total // block) * block) - self.total
        if not missing:
            return self
        padding = np.full(missing, int(Segment.PAD), dtype=self.segments.dtype)
        return Layout(self.shape, np.append(self.lengths, missing), np.append(self.segments, padding), self.prefix)

    @cached_property
    def ends(self) -> Array:
        """`(texts + 1,)`: 0, then where each text ends."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def document(self) -> Array:
        """`(total,)`: the number of the text of each position."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def place(self) -> Array:
        """`(total,)`: the index of each position in its text, the prefix included."""
        return np.arange(self.total) - self.ends[self.document] + self.prefix

    @property
    def padded(self) -> Array:
        """`(total,)`: where each position lies in the flattened padded batch."""
        return self.place - self.prefix + self.document * self.shape[1]

    @property
    def first_prompt(self) -> Array:
        """`(total,)` bool: the first position of each text, where it is not part of the text (BOS)."""
        return (self.place == 0) & (self.segments == Segment.PROMPT)


@dataclass(frozen=True)
class PackedRows:
    """A batch as one row, on a device.

    Attributes:
        shape: rows and tokens of the padded batch.
        total: real positions.
        index: `(width,)`: where each position lies in the flattened padded batch; 0 after the real ones.
        position_ids: `(1, width)`: they restart in each text.
        arguments: what the model is called with, so that texts do not read each other.
    """

    shape: tuple[int, int]
    total: int
    index: Tensor
    position_ids: Tensor
    arguments: dict[str, Any]

    @classmethod
    def of(cls, layout: Layout, first: int, device: torch.device, arguments: dict[str, Any], width: int) -> PackedRows:
        """Return a layout on a device, as a row of `width` positions.

        `first` is the number that the model gives to the first position of a text.
        """
        index, places = (np.pad(part, (0, width - layout.total)) for part in (layout.padded, layout.place))
        return cls(layout.shape, layout.total, copied(index, device), copied(places + first, device)[None], arguments)

    def run(self, model: Any, padded: Tensor, **more: Any) -> Tensor:
        """Return a model's final states `(batch, tokens, hidden)` of embeddings in the same form."""
        how = {"use_cache": False, "position_ids": self.position_ids, **self.arguments, **more}
        return self.unpack(model(inputs_embeds=self.pack(padded), **how).last_hidden_state)

    def pack(self, padded: Tensor) -> Tensor:
        """Return `(1, width, hidden)` of `(batch, tokens, hidden)`."""
        return padded.flatten(0, 1).index_select(0, self.index)[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """Return `(batch, tokens, hidden)` of `(1, width, hidden)`, with zeros at the padding."""
        rows, tokens = self.shape
        empty = packed.new_zeros(rows * tokens, packed.shape[-1])
        return empty.index_copy(0, self.index[: self.total], packed[0, : self.total]).view(rows, tokens, -1)


def copied(array: Array, device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Return a copy of an array on a device, without waiting for it."""
    return upload(torch.from_numpy(np.ascontiguousarray(array)).to(dtype), device)


def alike(*states: Tensor) -> tuple[Tensor, ...]:
    """Return states in autocast's dtype where it is on, since rotary embeddings turn some of them into float32."""
    device = states[0].device.type
    if not torch.is_autocast_enabled(device):
        return states
    return tuple(part.to(torch.get_autocast_dtype(device)) for part in states)


def packable(tokens: Tokens) -> bool:
    """Return whether rows are one text each, without branches."""
    return tokens.document_ids is None and tokens.branch_ids is None
