"""Evaluation at chosen numbers of samples: the points of a learning curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

EvaluationPoints = Literal["log"] | Sequence[int]


def evaluation_steps(at: EvaluationPoints, *, last: int, per_step: int) -> list[int]:
    """Return the optimiser steps after which an encoder is scored; the last step is always one of them.

    Args:
        at: `log`: 1, 2, 4, 8, …; or numbers of samples: each is scored after the first step that has seen that many.
        last: number of steps.
        per_step: samples per optimiser step.

    Examples:
        >>> evaluation_steps("log", last=10, per_step=32)
        [1, 2, 4, 8, 10]
        >>> evaluation_steps([32, 100, 5000], last=10, per_step=32)
        [1, 4, 10]
    """
    if at == "log":
        wanted = [2**i for i in range(last.bit_length())]
    else:
        wanted = [-(-int(samples) // per_step) for samples in at]
    return sorted({step for step in wanted if step < last} | {last})


def samples_per_step(args: TrainingArguments) -> int:
    """Return the rows per optimiser step, over all processes."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


class EvaluateAtSteps(TrainerCallback):
    """Tell the Trainer to evaluate at the steps of a learning curve; a resumed run evaluates at the same steps."""

    def __init__(self, at: EvaluationPoints, per_step: int) -> None:
        self.at, self.per_step = at, per_step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Request an evaluation after the chosen steps."""
        if state.global_step in evaluation_steps(self.at, last=state.max_steps, per_step=self.per_step):
            control.should_evaluate = True
        return control
