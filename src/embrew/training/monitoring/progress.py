"""Progress of a stage's training."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from embrew.progress import Bar, progress


class TrainingProgress(TrainerCallback):
    """Show a stage's optimiser steps, with the last logged loss, from the first process.

    Args:
        name: the stage's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.bar: Bar | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the bar, at the checkpoint's step where training resumes."""
        if state.is_world_process_zero:
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
        """Show the loss."""
        if self.bar is not None and logs and "loss" in logs:
            self.bar.note(f"loss {logs['loss']:.4g}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove the bar."""
        self.close()

    def close(self) -> None:
        """Remove the bar, also after an error."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
