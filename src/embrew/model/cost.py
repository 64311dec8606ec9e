"""The split of rows into forward passes that takes the least time, by a model of that time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

CPU = {  # milliseconds of a layer in a pass, of a million of its weights; of a layer per token, of a million weights
    False: (0.82, 0.58, 0.0010, 0.0257),
    True: (3.2, 1.07, 0.0248, 0.0536),
}  # fitted to benchmarks/results/pass-cost.md; True: with a backward pass
GPU = 0.12, 0.0, 0.0, 5e-6  # where nothing is measured: 0.12 ms to launch a layer, products at 400 TFLOP/s
BFLOAT16 = 2.0  # on a CPU: a token takes half the time, a pass's overhead stays (benchmarks/results/pass-cost.md)
MOST = 8_192  # tokens


@dataclass(frozen=True)
class Cost:
    """What a forward pass takes, in units of the time of one of its positions.

    Attributes:
        overhead: of a pass, however few its positions.
        alike: every process runs as many passes as the others: sharded weights are gathered from all in each.
    """

    overhead: float = 128.0
    alike: bool = False

    @classmethod
    def of(cls, layers: Sequence[nn.Module], *, training: bool) -> Cost:
        """Return the cost for a model of layers that are alike.

        It depends on their size, device and arithmetic alone, so that the same rows are grouped alike in every process.
        """
        alike = hasattr(layers[0], "unshard")  # a method of FSDP2
        weights = list(layers[0].parameters())
        size = sum(weight.numel() for weight in weights)
        on_cpu = weights[0].device.type == "cpu"
        overhead = by_shape(size, training=training, on_cpu=on_cpu)
        short = on_cpu and (weights[0].dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu"))
        return cls(overhead * BFLOAT16 if short else overhead, alike)


USUAL = Cost()  # where a model is not at hand


def by_shape(size: int, *, training: bool, on_cpu: bool = True) -> float:
    """Return the overhead of a pass, in tokens, of a model with `size` weights per layer; its depth plays no part.

    >>> by_shape(15_700_000, training=False), by_shape(1_100_000, training=False)
    (25.0, 50.0)
    """
    layer, weights, per_token, weights_per_token = CPU[training] if on_cpu else GPU
    millions = size / 1e6
    overhead = (layer + weights * millions) / (per_token + weights_per_token * millions)
    return float(min(MOST, max(1, round(overhead))))


def cheapest(lengths: Sequence[int], *, overhead: float, batch_size: int, batch_tokens: int | None) -> list[int]:
    """Return how many rows each pass takes, so that Σ (overhead + its rows × its longest row) is the least.

    Dynamic programming from the shortest row. In an optimal split, a pass begins where a length begins, or is full:
    else rows of its own length could move to it from the pass before, whose longest row is no shorter.

    Args:
        lengths: tokens of each row, in descending order.
        overhead: of a pass, in tokens.
        batch_size: the most rows of a pass, where there is no limit in tokens.
        batch_tokens: the most padded tokens of a pass; a longer row goes alone.

    >>> cheapest([9, 4, 3, 2], overhead=1, batch_size=32, batch_tokens=10)
    [1, 2, 1]
    """
    count = len(lengths)
    begins = [False] * count + [True]
    ends = np.full(count + 1, count)  # where passes may begin, the last first,
    costs = np.zeros(count + 1)  # and the cost of all rows from there on
    negative, following, found = [-count], {}, 1
    for i in range(count - 1, -1, -1):
        length = max(lengths[i], 1)
        most = batch_size if batch_tokens is None else max(1, batch_tokens // length)
        is_full = i + most <= count and begins[i + most]
        if i and lengths[i - 1] == lengths[i] and not is_full:
            continue
        first = bisect_left(negative, -(i + most))
        options = costs[first:found] + length * (ends[first:found] - i)
        chosen = int(options.argmin())
        begins[i], ends[found], costs[found] = True, i, overhead + options[chosen]
        following[i] = -negative[first + chosen]
        negative.append(-i)
        found += 1
    sizes, i = [], 0
    while i < count:
        sizes.append(following[i] - i)
        i = following[i]
    return sizes
