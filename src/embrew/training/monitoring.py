"""What is shown of a stage while it is trained: log lines, progress, and warnings about parts of the loss."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from embrew.methods import Objective
from embrew.progress import Bar, progress

logger = logging.getLogger(__name__)
LINES = 3  # log lines; by default a line is a tenth of the stage


class Monitoring(TrainerCallback):
    """Show the Trainer's logs as lines and a progress bar, and warn of what `Objective.concern` says; in one process.

    It warns once in a stage, of means over the last `LINES` log lines; of a stage with fewer, at its end. A line holds
    means over its steps, micro-batches and processes, which were read from the device for the log. The lines are those
    of the Trainer's history, which a checkpoint holds: a resumed stage warns of what the uninterrupted one would, and
    not again.

    Args:
        name: of the stage.
        objective: that it trains.
        progress_bar: show one.
    """

    def __init__(self, name: str, objective: Objective, *, progress_bar: bool = True) -> None:
        self.name, self.objective, self.progress_bar = name, objective, progress_bar
        self.bar: Bar | None = None
        self.warned: bool | None = None  # None: the lines before were not looked at

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the bar, at the checkpoint's step where training resumes."""
        if state.is_world_process_zero and self.progress_bar:
            self.bar = progress(state.max_steps, self.name, "step", initial=state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the bar."""
        if self.bar is not None:
            self.bar.reach(state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log a line, and look at the last ones."""
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        if self.bar is not None:
            self.bar.note(f"loss {logs['loss']:.4g}")
        parts = "  ".join(f"{name} {value:.4g}" for name, value in logs.items() if name != "epoch")
        logger.info("%s  step %d/%d  %s", self.name, state.global_step, state.max_steps, parts)
        lines = loss_lines(state.log_history)
        if self.warned is None:
            ends = range(LINES, len(lines))
            self.warned = any(self.objective.concern(means(lines[end - LINES : end])) for end in ends)
        if len(lines) >= LINES:
            self._warn(lines[-LINES:])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove the bar; look at the lines of a stage that has only a few."""
        self.close()
        lines = loss_lines(state.log_history)
        if state.is_world_process_zero and 0 < len(lines) < LINES:
            self._warn(lines)

    def close(self) -> None:
        """Remove the bar, also after an error."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _warn(self, lines: Sequence[Mapping[str, float]]) -> None:
        concern = None if self.warned else self.objective.concern(means(lines))
        if concern:
            self.warned = True
            logger.warning("%s  %s (mean of the log lines until step %d)", self.name, concern, lines[-1]["step"])


def loss_lines(log_history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return the log lines of a stage: step, loss and its parts.

    >>> loss_lines([{"loss": 2.0, "express": 1.5, "epoch": 0.1, "step": 10}, {"eval_dev": 0.4, "step": 10}])
    [{'step': 10, 'loss': 2.0, 'express': 1.5}]
    """
    others = ("step", "epoch", "learning_rate", "grad_norm")
    return [
        {"step": line["step"], **{name: value for name, value in line.items() if name not in others}}
        for line in log_history
        if "loss" in line
    ]


def means(lines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means of what all lines have.

    >>> means([{"loss": 2.0, "express": 1.0}, {"loss": 4.0}])
    {'loss': 3.0}
    """
    return {
        name: statistics.fmean(line[name] for line in lines) for name in lines[0] if all(name in one for one in lines)
    }
