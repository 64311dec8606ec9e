"""Stop training where a loss is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def check_finite(losses: Sequence[Tensor], *, step: int) -> None:
    """Raise where a loss of an optimiser step is not finite; all are read together, for which the host waits once.

    Args:
        losses: of the micro-batches.
        step: number of the step, for the message.

    Raises:
        ValueError: one is not finite.
    """
    wrong = [loss for loss in torch.stack(list(losses)).tolist() if not math.isfinite(loss)]
    if wrong:
        raise ValueError(
            f"the loss is {wrong[0]} at step {step}; lower the learning rate, clip gradients "
            "(training.max_grad_norm), or check the data of this batch"
        )
