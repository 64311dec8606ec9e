"""Many texts to vectors: batches by token budget, longest first, split so that passes take the least time."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from embrew.distributed import max_over_processes
from embrew.model.prefix import shared_prefix
from embrew.progress import progress
from embrew.text.tokens import Row, Tokens, select_rows

CPU = {  # milliseconds of a layer in a pass, of a million of its weights; of a layer per token, of a million weights
    False: (0.82, 0.58, 0.0010, 0.0257),
    True: (3.2, 1.07, 0.0248, 0.0536),
}  # fitted to benchmarks/results/pass-cost.md; True: with a backward pass
GPU = 0.12, 0.0, 0.0, 5e-6  # where nothing is measured: 0.12 ms to launch a layer, products at 400 TFLOP/s
BFLOAT16 = 2.0  # on a CPU: a token takes half the time, a pass's overhead stays (benchmarks/results/pass-cost.md)
PADDING = 0.01  # of packed rows, in tokens: embeddings are copied, and with all layers read every layer's states
MAX_OVERHEAD = 8_192  # tokens


@dataclass(frozen=True)
class Cost:
    """What a forward pass takes, in units of the time of one of its positions.

    Attributes:
        overhead: overhead of a pass, however few its positions.
        synchronized: whether every process runs as many passes as the others, in each of which sharded weights are
            gathered from all.
    """

    overhead: float = 128.0
    synchronized: bool = False

    @classmethod
    def for_layers(cls, layers: Sequence[nn.Module], *, training: bool, packed: bool = False) -> Cost:
        """Return the cost for a model of layers that are alike; where rows are packed, padding costs little.

        It depends on their size, device and arithmetic alone, so that the same rows are grouped alike in every process.
        """
        alike = hasattr(layers[0], "unshard")  # a method of FSDP2
        weights = list(layers[0].parameters())
        size = sum(weight.numel() for weight in weights)
        on_cpu = weights[0].device.type == "cpu"
        overhead = by_shape(size, training=training, on_cpu=on_cpu)
        short = on_cpu and (weights[0].dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu"))
        return cls(overhead * (BFLOAT16 if short else 1.0) / (PADDING if packed else 1.0), alike)


DEFAULT_COST = Cost()  # where a model is not at hand


def by_shape(size: int, *, training: bool, on_cpu: bool = True) -> float:
    """Return the overhead of a pass, in tokens, of a model with `size` weights per layer; its depth plays no part.

    >>> by_shape(15_700_000, training=False), by_shape(1_100_000, training=False)
    (25.0, 50.0)
    """
    layer, weights, per_token, weights_per_token = CPU[training] if on_cpu else GPU
    millions = size / 1e6
    overhead = (layer + weights * millions) / (per_token + weights_per_token * millions)
    return float(min(MAX_OVERHEAD, max(1, round(overhead))))


def cheapest_batch_sizes(
    lengths: Sequence[int], *, overhead: float, batch_size: int, batch_tokens: int | None
) -> list[int]:
    """Return how many rows each pass takes, so that Σ (overhead + its rows × its longest row) is the least.

    Dynamic programming from the shortest row. In an optimal split, a pass begins where a length begins, or is full:
    else rows of its own length could move to it from the pass before, whose longest row is no shorter.

    Args:
        lengths: tokens of each row, in descending order.
        overhead: overhead of a pass, in tokens.
        batch_size: largest number of rows of a pass, where there is no limit in tokens.
        batch_tokens: largest number of padded tokens of a pass; a longer row goes alone.

    >>> cheapest_batch_sizes([9, 4, 3, 2], overhead=1, batch_size=32, batch_tokens=10)
    [1, 2, 1]
    """
    count = len(lengths)
    begins = [False] * count + [True]
    ends = np.full(count + 1, count)  # where passes may begin, the last first,
    costs = np.zeros(count + 1)  # and the cost of all rows from there on
    negative, following, filled = [-count], {}, 1
    for i in range(count - 1, -1, -1):
        length = max(lengths[i], 1)
        maximum = batch_size if batch_tokens is None else max(1, batch_tokens // length)
        is_full = i + maximum <= count and begins[i + maximum]
        if i and lengths[i - 1] == lengths[i] and not is_full:
            continue
        first = bisect_left(negative, -(i + maximum))
        options = costs[first:filled] + length * (ends[first:filled] - i)
        chosen = int(options.argmin())
        begins[i], ends[filled], costs[filled] = True, i, overhead + options[chosen]
        following[i] = -negative[first + chosen]
        negative.append(-i)
        filled += 1
    sizes, i = [], 0
    while i < count:
        sizes.append(following[i] - i)
        i = following[i]
    return sizes


logger = logging.getLogger(__name__)
Item = TypeVar("Item")

WINDOW = 8_192  # texts that are tokenised ahead; bounds memory, whatever the size of the input
CPU_TOKENS, GPU_TOKENS = 2_048, 16_384  # padded tokens of a batch without a limit, where texts are encoded


class NotFinite(ValueError):
    """A text got a NaN or infinite embedding.

    Attributes:
        index: index of the text.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"text {index} has a NaN or infinite embedding; the model's weights are broken")
        self.index = index


def plan_batches(
    lengths: Sequence[int], *, batch_size: int, batch_tokens: int | None = None, cost: Cost = DEFAULT_COST
) -> list[list[int]]:
    """Split row indices into batches of similar length, longest first.

    The split is the one that takes the least time by `cost`, which weighs padding against further forward passes.

    Args:
        lengths: tokens of each row.
        batch_size: rows per batch, where no token budget is given.
        batch_tokens: budget of a batch in padded tokens (rows × longest row); a longer single row goes alone.
        cost: cost of a forward pass.

    Returns:
        Batches of indices; every index exactly once, no batch empty.

    >>> plan_batches([3, 9, 4, 2], batch_size=32, batch_tokens=10)
    [[1], [2, 0], [3]]
    """
    if batch_size < 1 or (batch_tokens is not None and batch_tokens < 1):
        raise ValueError(f"batch_size={batch_size}, batch_tokens={batch_tokens}; both must be 1 or more")
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])  # stable: equal lengths keep their order
    descending = [lengths[i] for i in order]
    counts = cheapest_batch_sizes(descending, overhead=cost.overhead, batch_size=batch_size, batch_tokens=batch_tokens)
    remaining = iter(order)
    return [list(islice(remaining, count)) for count in counts]


def default_batch_tokens(device: torch.device) -> int:
    """Return the padded tokens of a batch where neither rows nor tokens are limited."""
    return CPU_TOKENS if device.type == "cpu" else GPU_TOKENS


def batches_of(
    rows: Sequence[Row], *, batch_size: int, batch_tokens: int | None, shared: int = 0, cost: Cost = DEFAULT_COST
) -> list[list[int]]:
    """Return `plan_batches` of sorted rows, so that batches, and vectors to the bit, do not depend on the rows' order.

    The first `shared` tokens of each are not counted.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i].ids)
    lengths = [len(rows[i].ids) - shared for i in order]
    planned = plan_batches(lengths, batch_size=batch_size, batch_tokens=batch_tokens, cost=cost)
    return [[order[i] for i in batch] for batch in planned]


class Pass(NamedTuple):
    """The rows of one forward pass; with `is_real` False a dummy pass, whose results are multiplied by 0."""

    rows: list[int]
    is_real: bool = True


def passes_by_length(
    tokens: Tokens, cost: Cost, *, batch_size: int | None = None, batch_tokens: int | None = None
) -> list[Pass]:
    """Return passes of rows of similar length, by `plan_batches`, followed by dummy passes where weights are sharded.

    Without limits, passes are large. The number of groups depends on the lengths, so it differs between processes.
    Every pass through sharded weights gathers them from all processes: each process runs as many as the one with the
    most groups. The dummy passes read the shortest row; their backward passes must run too.
    """
    lengths = tokens.lengths
    groups = plan_batches(lengths, batch_size=batch_size or len(lengths), batch_tokens=batch_tokens, cost=cost)
    count = max_over_processes(len(groups), tokens.input_ids.device) if cost.synchronized else len(groups)
    return [Pass(group) for group in groups] + [Pass(groups[-1][-1:], is_real=False)] * (count - len(groups))


def embed_by_length(embed: Callable[[Tokens], Tensor], tokens: Tokens, cost: Cost) -> Tensor:
    """Return the vectors of a batch, computed in groups of similar length, without most of the padding.

    A global batch of sentences and paragraphs is mostly padding. Gradients flow as through one forward pass; only
    dropout's draws differ.

    Args:
        embed: function from a batch to `(..., batch, width)`; called once per group.
        tokens: a batch whose rows are one text each.
        cost: cost of a forward pass.
    """
    passes = passes_by_length(tokens, cost)
    parts = [embed(tokens.select(group.rows)) for group in passes]
    order = torch.tensor([i for group in passes if group.is_real for i in group.rows]).argsort()
    vectors = torch.cat([part for part, group in zip(parts, passes, strict=True) if group.is_real], dim=-2)
    for part in parts[sum(group.is_real for group in passes) :]:
        vectors = vectors + 0.0 * part.sum()
    return select_rows(vectors, order, dim=-2)


def embed_together(embed: Callable[[Tokens], Tensor], batches: Mapping[str, Tokens], cost: Cost) -> dict[str, Tensor]:
    """Return the vectors of several batches by name: `embed_by_length` of all their rows, since a pass costs time.

    Batches with given vectors or branches, which differ in what a row has, are left out.
    """
    plain = {name: tokens for name, tokens in batches.items() if tokens.soft is None and tokens.branch_ids is None}
    if not plain:
        return {}
    vectors = embed_by_length(embed, Tokens.stack(list(plain.values())), cost)
    return dict(zip(plain, vectors.split([len(tokens) for tokens in plain.values()], dim=-2), strict=True))


def encode_rows(
    tokenize: Callable[[int, int], list[Row]],
    total: int,
    embed: Callable[[Tokens, int], Tensor],
    width: int,
    *,
    batch_size: int,
    batch_tokens: int | None,
    show_progress_bar: bool,
    tokenize_ahead: bool = False,
    share: bool = False,
    cost: Cost = DEFAULT_COST,
) -> Tensor:
    """Embed `total` texts into a preallocated float32 CPU tensor `(total, width)`.

    A batch that does not fit into memory is halved, and so are later ones of its size; what fitted is logged.

    Args:
        tokenize: function that returns the rows of texts start..stop-1.
        total: number of texts.
        embed: function from a batch, and the number of leading tokens that its rows share, to `(batch, width)`.
        width: dimensions of an embedding.
        batch_size: rows per batch, where no token budget is given.
        batch_tokens: token budget per batch.
        show_progress_bar: show one.
        tokenize_ahead: whether a thread makes the next rows meanwhile; on a CPU it would take turns with the model.
        share: whether a prefix that all rows share is computed once.
        cost: cost of a forward pass.

    Raises:
        NotFinite: an embedding is not finite; names the text.
    """
    out = torch.empty(total, width, dtype=torch.float32)
    windows = ((start, tokenize(start, min(start + WINDOW, total))) for start in range(0, total, WINDOW))
    limit: int | None = None  # padded tokens that fit into memory, once something did not
    with progress(total, "encode", "text", show=show_progress_bar) as bar:
        for start, rows in compute_ahead(windows) if tokenize_ahead else windows:
            shared = shared_prefix(rows) if share else 0
            waiting = deque(
                batches_of(rows, batch_size=batch_size, batch_tokens=batch_tokens, shared=shared, cost=cost)
            )
            while waiting:
                batch = waiting.popleft()
                padded = len(batch) * (len(rows[batch[0]].ids) - shared)
                vectors = None
                if limit is None or padded <= limit or len(batch) == 1:
                    try:
                        vectors = embed(Tokens.pad([rows[i] for i in batch]), shared).float().cpu()
                    except RuntimeError as error:
                        is_memory = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()
                        if len(batch) == 1 or not is_memory:
                            raise
                        limit = padded // 2
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
    if limit is not None:
        logger.warning("out of memory: continued with at most %d padded tokens per batch; begin there next time", limit)
    return out


def compute_ahead(items: Iterator[Item]) -> Generator[Item]:
    """Yield the same items, each made in a worker thread while the previous one is used; at most two are held.

    >>> list(compute_ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    end: Any = object()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item
