"""Labelled rows of tokens, padded batches of them, and reads and writes at positions known on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

Rows = Sequence[int] | np.ndarray | Tensor  # numbers of rows, known on the CPU


def upload(value: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on a device; a copy from the CPU is not waited for, and passes through pinned memory for CUDA."""
    device = torch.device(device)
    if value.device.type != "cpu" or device.type in ("cpu", "mps"):  # on Apple's GPUs, such copies are not safe
        return value.to(device)
    if device.type == "cuda" and not value.is_pinned():
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def select_masked(values: Tensor, chosen: Tensor) -> Tensor:
    """Return `values[chosen]`, for a mask on the CPU and values on any device."""
    index = upload(chosen.flatten().nonzero()[:, 0], values.device)
    return values.flatten(0, chosen.ndim - 1).index_select(0, index)


def write_masked(values: Tensor, chosen: Tensor, rows: Tensor) -> Tensor:
    """Return a copy of `values` with `rows` at the true entries of a mask on the CPU, in order."""
    index = upload(chosen.flatten().nonzero()[:, 0], values.device)
    return values.flatten(0, chosen.ndim - 1).index_copy(0, index, rows).view_as(values)


def select_rows(values: Tensor, rows: Rows, dim: int = 0) -> Tensor:
    """Return some rows of `values`, whose numbers are known on the CPU."""
    return values.index_select(dim, upload(torch.as_tensor(rows, dtype=torch.long), values.device))


class Segment(IntEnum):
    """What a position of a sequence holds. Pooling, attention and losses read this label and nothing else."""

    PAD = 0
    PROMPT = 1
    """Tokens that frame the text: BOS, an instruction, a template's own words, EOS."""
    TEXT = 2
    """The user's text; the only segment that is ever truncated."""
    MEMORY = 3
    """Learned memory tokens."""
    SOFT = 4
    """A place-holder into which a given vector is written."""
    TARGET = 5
    """Tokens that a language model is asked to predict."""
    ECHO = 6
    """The text a second time."""


class Row(NamedTuple):
    """One sequence before padding: token ids and, position by position, their segments."""

    ids: list[int]
    segments: list[int]

    def __add__(self, other: Row) -> Row:  # type: ignore[override]
        return Row(self.ids + other.ids, self.segments + other.segments)

    @classmethod
    def labelled(cls, ids: Sequence[int], segment: Segment) -> Row:
        """Return a row in which every position belongs to one segment."""
        return cls(list(ids), [int(segment)] * len(ids))


@dataclass(frozen=True)
class Tokens:
    """A right-padded batch.

    Attributes:
        input_ids: `(batch, tokens)` int64. Ids from the vocabulary size upwards are memory tokens.
        segment_ids: `(batch, tokens)` int64, values of `Segment`; 0 is padding.
        soft: vectors of the positions labelled `SOFT`, or None: `(batch, slots, hidden)`, in order, where every row
            has as many; or `(vectors, hidden)`, a table for all rows, whose rows the ids of these positions count.
        branch_ids: `(batch, tokens)` int64, where a row has several continuations: 0 is the trunk, which sees no
            branch; 1, 2, … are branches, which see the trunk and themselves; the positions of each follow the trunk's.
            None where a row has no branches.
        on_host: integers of a batch that was moved to a device, on the CPU; see `host`.
    """

    input_ids: Tensor
    segment_ids: Tensor
    soft: Tensor | None = None
    branch_ids: Tensor | None = None
    on_host: Tokens | None = field(default=None, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        """Where the integers are."""
        return self.input_ids.device

    @property
    def host(self) -> Tokens:
        """The same integers on the CPU, without `soft`: reading them does not wait for a device."""
        if self.device.type == "cpu":
            return self
        if self.on_host is not None:
            return self.on_host
        return replace(self._mapped(Tensor.cpu), soft=None)

    def _mapped(self, move: Callable[[Tensor], Tensor]) -> Tokens:
        """Return a batch of what a function makes of every tensor."""
        parts = self.input_ids, self.segment_ids, self.soft, self.branch_ids
        ids, segments, soft, branches = (None if part is None else move(part) for part in parts)
        return Tokens(ids, segments, soft, branches)  # type: ignore[arg-type]

    @property
    def lengths(self) -> list[int]:
        """Number of real positions of each row."""
        counts: list[int] = self.host.attention_mask.sum(1).tolist()
        return counts

    @property
    def position_ids(self) -> Tensor | None:
        """`(batch, tokens)`: positions that restart after the trunk in every branch; None without branches."""
        parts = self.branch_ids
        if parts is None:
            return None
        columns = torch.arange(self.input_ids.shape[1], device=self.input_ids.device).expand_as(self.input_ids)
        begins = torch.ones_like(parts, dtype=torch.bool)
        begins[:, 1:] = parts[:, 1:] != parts[:, :-1]
        inside = columns - torch.where(begins, columns, 0).cummax(-1).values
        trunk = ((parts == 0) & (self.segment_ids != Segment.PAD)).sum(-1, keepdim=True)
        return torch.where(parts == 0, inside, trunk + inside)

    @property
    def attention_mask(self) -> Tensor:
        """`(batch, tokens)` int64: 1 where a position is real."""
        return (self.segment_ids != Segment.PAD).long()

    def where(self, segment: Segment) -> Tensor:
        """Return `(batch, tokens)` bool: the positions of one segment."""
        return self.segment_ids == segment

    def predicting(self, segment: Segment, *, include_last: bool = False) -> Tensor:
        """Return `(batch, tokens)` bool: the positions whose next token belongs to `segment`.

        With `include_last` also the last position of the segment itself, which predicts what would follow.
        """
        inside = self.where(segment)
        after = torch.zeros_like(inside)
        after[:, :-1] = inside[:, 1:]
        return after | (inside if include_last else torch.zeros_like(inside))

    def with_soft(self, vectors: Tensor) -> Tokens:
        """Return the batch with `vectors` for its `SOFT` positions, `(batch, slots, hidden)` or `(vectors, hidden)`."""
        return replace(self, soft=vectors)

    def to(self, device: torch.device | str) -> Tokens:
        """Return the batch on another device, which keeps its integers on the CPU too; copies are not waited for."""
        device = torch.device(device)
        if device.type == "cpu":
            soft = None if self.soft is None else self.soft.cpu()
            return self if self.device.type == "cpu" else replace(self.host, soft=soft)
        return replace(self._mapped(partial(upload, device=device)), on_host=replace(self.host, soft=None))

    def pin_memory(self) -> Tokens:
        """Return the batch in pinned memory, from which copies to a GPU are fast; data loaders call this."""
        return self._mapped(Tensor.pin_memory)

    def repeat(self, times: int) -> Tokens:
        """Return the batch stacked `times` times: rows 0..B-1, then 0..B-1 again."""
        return Tokens(self.input_ids.repeat(times, 1), self.segment_ids.repeat(times, 1))

    @classmethod
    def stack(cls, batches: Sequence[Tokens]) -> Tokens:
        """Return the rows of several batches without `soft` and branches as one batch, padded to the longest."""
        hosts = [batch.host for batch in batches]
        width = max(host.input_ids.shape[1] for host in hosts)

        def stacked(parts: Sequence[Tensor]) -> Tensor:
            return torch.cat([pad(part, (0, width - part.shape[1])) for part in parts])

        ids, segments = stacked([host.input_ids for host in hosts]), stacked([host.segment_ids for host in hosts])
        return cls(ids, segments).to(batches[0].device)

    def select(self, rows: Rows) -> Tokens:
        """Return some rows of a batch, without columns that are only padding."""
        host, chosen = self.host, torch.as_tensor(rows, dtype=torch.long)
        segments = host.segment_ids[chosen]
        width = int((segments != Segment.PAD).sum(1).max())
        branches = None if host.branch_ids is None else host.branch_ids[chosen, :width]
        some = Tokens(host.input_ids[chosen, :width], segments[:, :width], None, branches)
        soft = self.soft if self.soft is None or self.soft.ndim == 2 else select_rows(self.soft, chosen)
        return replace(some.to(self.device), soft=soft)  # a table of vectors is for all rows

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    @classmethod
    def pad(cls, rows: Sequence[Row]) -> Tokens:
        """Pad rows on the right to the longest.

        Padding positions have id 0 and are identified by their segment, never by their id, since the padding token of
        some tokenizers is a real token (often EOS).
        """
        if not rows:
            raise ValueError("no rows to pad: a batch needs at least one text")
        lengths = np.array([len(row.ids) for row in rows])
        real = np.arange(lengths.max()) < lengths[:, None]
        ids, segments = np.zeros((2, *real.shape), dtype=np.int64)
        ids[real] = np.fromiter(chain.from_iterable(row.ids for row in rows), np.int64, lengths.sum())
        segments[real] = np.fromiter(chain.from_iterable(row.segments for row in rows), np.int64, lengths.sum())
        return cls(torch.from_numpy(ids), torch.from_numpy(segments))
