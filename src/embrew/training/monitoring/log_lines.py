"""The Trainer's logs through `logging`."""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)


class LogLines(TrainerCallback):
    """Write the Trainer's logs as lines instead of printed dicts."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log one line per event, from the first process."""
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        parts = "  ".join(f"{name} {value:.4g}" for name, value in logs.items() if name != "epoch")
        logger.info("%s  step %d/%d  %s", self.name, state.global_step, state.max_steps, parts)
