"""Hugging Face's Trainer with checkpoints of trained tensors only, which are complete once they are sealed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from embrew.training import sharding
from embrew.training.monitoring.stage_evaluation import Point, StageEvaluation, curve_from_log
from embrew.training.resuming import checkpoints
from embrew.training.resuming.checkpoint_files import (
    BEST,
    WEIGHTS,
    files_needed,
    link_or_copy,
    read_sharded_optimizer,
    read_trained,
    write_sharded_optimizer,
    write_trained,
)
from embrew.training.step import TrainStep

KEEP = 2  # checkpoints of a stage in progress


class CheckpointingTrainer(Trainer):
    """A Trainer around a `TrainStep` that saves trained tensors, sharded or not, and the best step's.

    Attributes:
        step: what is trained.
        evaluation: within the stage, or None; where it chooses a step, each checkpoint holds the best weights so far.
    """

    step: TrainStep
    evaluation: StageEvaluation | None

    @property
    def curve(self) -> list[Point]:
        """The learning curve so far."""
        return curve_from_log(self.state.log_history)

    @property
    def best_weights(self) -> Path:
        """The file of the best step's trained tensors."""
        return Path(self.args.output_dir or ".") / BEST

    def write_trained(self, path: Path) -> None:
        """Write the trained tensors; by one process, of all."""
        write_trained(self.step, path, writes=self.args.should_save)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        self.write_trained(Path(output_dir or self.args.output_dir or ".") / WEIGHTS)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.step.sharded and self.optimizer is not None and self.lr_scheduler is not None:
            folder, writes = Path(output_dir), self.args.should_save
            write_sharded_optimizer(folder, self.optimizer, self.lr_scheduler, writes=writes)
        else:
            super()._save_optimizer_and_scheduler(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint and self.step.sharded and self.optimizer is not None and self.lr_scheduler is not None:
            read_sharded_optimizer(Path(checkpoint), self.optimizer, self.lr_scheduler)
        else:
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        read_trained(self.step, Path(resume_from_checkpoint) / WEIGHTS)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir or ".")
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        if (
            checkpoint.exists()
            and self.args.should_save
            and not checkpoints.is_whole(checkpoint, files_needed(self.args))
        ):
            shutil.rmtree(checkpoint)
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            if self.evaluation is not None and self.evaluation.metric is not None and self.curve:
                link_or_copy(self.best_weights, checkpoint / BEST)
            checkpoints.seal(checkpoint)
            checkpoints.rotate(folder, KEEP)
        self.accelerator.wait_for_everyone()

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if not sharding.is_sharded(model):  # shards are on their devices
            super()._move_model_to_device(model, device)
