"""Evaluation at chosen numbers of samples: points of a learning curve, without a checkpoint for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

EvaluationPoints = Literal["log"] | Sequence[int]


def evaluation_steps(at: EvaluationPoints, *, last: int, per_step: int) -> list[int]:
    """The optimiser steps after which an encoder is scored; the last one always is.

    Args:
        at: `log`: 1, 2, 4, 8, …; or numbers of samples, each reached by the first step that has seen as many.
        last: how many steps there are.
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
    """Rows of an optimiser step, of all processes together."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


class EvaluateAtSteps(TrainerCallback):
    """Asks the Trainer to evaluate at the steps of a curve; a resumed run asks at the same ones."""

    def __init__(self, at: EvaluationPoints, per_step: int) -> None:
        self.at, self.per_step = at, per_step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """After each optimiser step."""
        if state.global_step in evaluation_steps(self.at, last=state.max_steps, per_step=self.per_step):
            control.should_evaluate = True
        return control
