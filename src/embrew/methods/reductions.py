"""Means over an optimiser step: the weight of the loss of one token or row in a micro-batch of one process.

The gradient of a step is the mean over its micro-batches and over processes. A mean over all tokens of the step is
therefore not the mean of the means of its micro-batches, which have different numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from embrew.distributed import sum_over_processes, world_size

UNIT_WEIGHTS = "unit_weights"  # their key in a batch


def weights_of_units(counts: Sequence[Mapping[str, int]], device: torch.device) -> dict[str, float]:
    """Return, for each name, (micro-batches · processes) / (its count in all micro-batches of all processes).

    Args:
        counts: of this process, one entry per micro-batch of the step; all have the same names.
        device: device on which the processes exchange their counts; all processes must call this.

    Examples:
        >>> weights_of_units([{"tokens": 30}, {"tokens": 10}], torch.device("cpu"))  # (Σ over 30 + Σ over 10) / 40
        {'tokens': 0.05}
    """
    names = sorted(counts[0])
    if not names:
        return {}
    own = torch.tensor([[one[name] for name in names] for one in counts], dtype=torch.float64).sum(0)
    totals = (own if world_size() == 1 else sum_over_processes(own.to(device))).tolist()
    return {name: len(counts) * world_size() / max(total, 1.0) for name, total in zip(names, totals, strict=True)}


def unit_weights(counts: Mapping[str, int], batch: Mapping[str, Any], device: torch.device) -> Mapping[str, float]:
    """Return the weights that the trainer put into a batch; without, those of a step with this batch only."""
    given: Mapping[str, float] | None = batch.get(UNIT_WEIGHTS)
    return weights_of_units([counts], device) if given is None else given
