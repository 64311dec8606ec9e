"""Many texts to vectors: batches by token budget, longest first."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from embrew.distributed import most_over_processes
from embrew.model.cost import USUAL, Cost, cheapest
from embrew.model.prefix import shared_prefix
from embrew.progress import progress
from embrew.text.indexing import take
from embrew.text.tokens import Row, Tokens

logger = logging.getLogger(__name__)
Item = TypeVar("Item")

WINDOW = 8_192  # texts that are tokenised ahead; bounds memory, whatever the size of the input
CPU_TOKENS, GPU_TOKENS = 2_048, 16_384  # padded tokens of a batch without a limit, where texts are encoded


class NotFinite(ValueError):
    """A text got a NaN or infinite embedding.

    Attributes:
        place: number of the text.
    """

    def __init__(self, place: int) -> None:
        super().__init__(f"text {place} has a NaN or infinite embedding; the model's weights are broken")
        self.place = place


def plan(
    lengths: Sequence[int], *, batch_size: int, batch_tokens: int | None = None, cost: Cost = USUAL
) -> list[list[int]]:
    """Split row indices into batches of similar length, longest first.

    The split is the one that takes the least time by `cost`, which weighs padding against further forward passes.

    Args:
        lengths: tokens of each row.
        batch_size: rows per batch, where no token budget is given.
        batch_tokens: budget of a batch in padded tokens (rows × longest row); a longer single row goes alone.
        cost: of a forward pass.

    Returns:
        Batches of indices; every index exactly once, no batch empty.

    >>> plan([3, 9, 4, 2], batch_size=32, batch_tokens=10)
    [[1], [2, 0], [3]]
    """
    if batch_size < 1 or (batch_tokens is not None and batch_tokens < 1):
        raise ValueError(f"batch_size={batch_size}, batch_tokens={batch_tokens}; both must be 1 or more")
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])  # stable: equal lengths keep their order
    descending = [lengths[i] for i in order]
    counts = cheapest(descending, overhead=cost.overhead, batch_size=batch_size, batch_tokens=batch_tokens)
    remaining = iter(order)
    return [list(islice(remaining, count)) for count in counts]


def usual_tokens(device: torch.device) -> int:
    """Return the padded tokens of a batch where neither rows nor tokens are limited."""
    return CPU_TOKENS if device.type == "cpu" else GPU_TOKENS


def batches_of(
    rows: Sequence[Row], *, batch_size: int, batch_tokens: int | None, shared: int = 0, cost: Cost = USUAL
) -> list[list[int]]:
    """Return `plan` for sorted rows, so that batches, and the last bits of vectors, do not depend on the rows' order.

    The first `shared` tokens of each are not counted.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i].ids)
    lengths = [len(rows[i].ids) - shared for i in order]
    planned = plan(lengths, batch_size=batch_size, batch_tokens=batch_tokens, cost=cost)
    return [[order[i] for i in batch] for batch in planned]


def groups_by_length(
    tokens: Tokens, cost: Cost, *, batch_size: int | None = None, batch_tokens: int | None = None
) -> list[list[int]]:
    """Return the rows of a padded batch in groups of similar length, by `plan`; without limits, large ones."""
    lengths = tokens.lengths
    return plan(lengths, batch_size=batch_size or len(lengths), batch_tokens=batch_tokens, cost=cost)


class Pass(NamedTuple):
    """The rows of one forward pass; with `counts` False a dummy pass, whose results are multiplied by 0."""

    rows: list[int]
    counts: bool = True


def passes_by_length(
    tokens: Tokens, cost: Cost, *, batch_size: int | None = None, batch_tokens: int | None = None
) -> list[Pass]:
    """Return the passes of `groups_by_length`, followed by dummy passes where weights are sharded.

    The number of groups depends on the lengths, so it differs between processes. Every pass through sharded weights
    gathers them from all processes: each process runs as many as the one with the most groups. The dummy passes read
    the shortest row; their backward passes must run too.
    """
    groups = groups_by_length(tokens, cost, batch_size=batch_size, batch_tokens=batch_tokens)
    most = most_over_processes(len(groups), tokens.input_ids.device) if cost.alike else len(groups)
    return [Pass(group) for group in groups] + [Pass(groups[-1][-1:], counts=False)] * (most - len(groups))


def embed_by_length(embed: Callable[[Tokens], Tensor], tokens: Tokens, cost: Cost) -> Tensor:
    """Return the vectors of a batch, computed in groups of similar length, without most of the padding.

    A global batch of sentences and paragraphs is mostly padding. Gradients flow as through one forward pass; only
    dropout's draws differ.

    Args:
        embed: from a batch to `(..., batch, width)`; called once a group.
        tokens: a batch whose rows are one text each.
        cost: of a forward pass.
    """
    passes = passes_by_length(tokens, cost)
    found = [embed(tokens.select(one.rows)) for one in passes]
    order = torch.tensor([i for one in passes if one.counts for i in one.rows]).argsort()
    vectors = torch.cat([part for part, one in zip(found, passes, strict=True) if one.counts], dim=-2)
    for part in found[sum(one.counts for one in passes) :]:
        vectors = vectors + 0.0 * part.sum()
    return take(vectors, order, dim=-2)


def encode_rows(
    rows_of: Callable[[int, int], list[Row]],
    total: int,
    embed: Callable[[Tokens, int], Tensor],
    width: int,
    *,
    batch_size: int,
    batch_tokens: int | None,
    show_progress_bar: bool,
    tokenize_ahead: bool = False,
    share: bool = False,
    cost: Cost = USUAL,
) -> Tensor:
    """Embed `total` texts into a preallocated float32 CPU tensor `(total, width)`.

    A batch that does not fit into memory is halved, and so are later ones of its size; what fitted is logged.

    Args:
        rows_of: gives the rows of texts start..stop-1.
        total: number of texts.
        embed: from a batch, and how many leading tokens its rows share, to `(batch, width)`.
        width: dimensions of an embedding.
        batch_size: rows per batch, where no token budget is given.
        batch_tokens: token budget per batch.
        show_progress_bar: show one.
        share: look for a prefix that all rows share.
        cost: of a forward pass.
        tokenize_ahead: make the rows of the next window in a thread at the same time. On a CPU it would only take
            turns with the model.

    Raises:
        NotFinite: an embedding is not finite; names the text.
    """
    out = torch.empty(total, width, dtype=torch.float32)
    windows = ((start, rows_of(start, min(start + WINDOW, total))) for start in range(0, total, WINDOW))
    most: int | None = None  # padded tokens that fit into memory, once something did not
    with progress(total, "encode", "text", shown=show_progress_bar) as bar:
        for start, rows in ahead(windows) if tokenize_ahead else windows:
            shared = shared_prefix(rows) if share else 0
            limits: dict[str, Any] = {"batch_size": batch_size, "batch_tokens": batch_tokens}
            batches = batches_of(rows, **limits, shared=shared, cost=cost)
            waiting = deque(batches)
            while waiting:
                batch = waiting.popleft()
                padded = len(batch) * (len(rows[batch[0]].ids) - shared)
                vectors = None
                if most is None or padded <= most or len(batch) == 1:
                    try:
                        vectors = embed(Tokens.pad([rows[i] for i in batch]), shared).float().cpu()
                    except RuntimeError as error:
                        if len(batch) == 1 or not is_out_of_memory(error):
                            raise
                        most = padded // 2
                if vectors is None:  # handled here, where the error no longer holds on to the tensors
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()
                    waiting.extendleft((batch[len(batch) // 2 :], batch[: len(batch) // 2]))
                    continue
                finite = torch.isfinite(vectors).all(-1)
                if not finite.all():
                    raise NotFinite(start + batch[int((~finite).nonzero()[0])])
                out[torch.tensor(batch) + start] = vectors
                bar.update(len(batch))
    if most is not None:
        logger.warning("out of memory: continued with at most %d padded tokens per batch; begin there next time", most)
    return out


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error says that memory ran out, on whichever device."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()


def ahead(items: Iterator[Item]) -> Generator[Item]:
    """Yield the same items, each made in a worker thread while the previous one is used; at most two are held.

    >>> list(ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    end: Any = object()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item
