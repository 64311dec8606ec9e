"""Hugging Face's Trainer for a stage: saves trained tensors only, and evaluates while it trains."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations import TensorBoardCallback

from embrew.data.mixing import InstructedRows, MixedOrder
from embrew.distributed import mean_gradients, mean_of_figures
from embrew.files.writing import link_or_copy, writing_to
from embrew.methods.base import ITEM_WEIGHTS, Batch, DataRow, weights_of_items
from embrew.progress import Bar, progress
from embrew.recipe.build import StageArguments
from embrew.training import checkpoints, sharding
from embrew.training.checkpoints import BEST, WEIGHTS, read_trained, write_trained
from embrew.training.stage_evaluation import (
    Point,
    StageEvaluation,
    curve_from_log,
    evaluation_steps,
    samples_per_step,
)
from embrew.training.step import TrainStep

logger = logging.getLogger(__name__)
MAX_CHECKPOINTS = 2  # checkpoints that a stage in progress keeps
TENSORBOARD = ".tensorboard"  # suffix of the folder of event files, which outlives the folder of checkpoints


class KeepSteps(TrainerCallback):
    """Writes the trained tensors after each step of `training.keep` into the work folder."""

    def __init__(self, step: TrainStep, args: StageArguments) -> None:
        self.step, self.args = step, args

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Check the steps, now that their number is known."""
        self.args.check_keep(state.max_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write, before a checkpoint of this step: a run that is resumed from it has the file."""
        if state.global_step in (self.args.keep or ()):
            path = checkpoints.step_file(Path(str(self.args.output_dir)), state.global_step)
            write_trained(self.step, path, writes=self.args.should_save)


class StageTrainer(Trainer):
    """Hugging Face's Trainer around a `TrainStep`.

    Checkpoints hold the trained tensors (safetensors) and the Trainer's optimiser, schedule and RNG state; they are
    complete once their manifest is written. With `evaluation`, the stage is evaluated while it is trained; if the best
    step is chosen, its trained tensors are kept in the work folder and in each checkpoint.
    """

    def __init__(
        self,
        step: TrainStep,
        args: StageArguments,
        rows: Dataset,
        name: str,
        order: MixedOrder | None = None,
        evaluation: StageEvaluation | None = None,
    ) -> None:
        self.order = order
        self.evaluation = evaluation
        train_rows: Any = InstructedRows(rows, order) if order is not None and order.instructions else rows
        if args.n_gpu > 1:  # the Trainer would split batches for DataParallel, which TrainStep does not support
            args._n_gpu = 1
            logger.warning("%s  several GPUs are visible, and one is used; see docs/how-to/multi-gpu.md", name)

        def collate(batch: Sequence[DataRow]) -> Batch:
            epoch = int(self.state.epoch or 0)
            return step.objective.collate(batch, step.encoder, seed=args.seed * 1_000_003 + epoch)

        # The Trainer requires an evaluation data set; `evaluation` has its own.
        no_rows = None if evaluation is None else rows.select([])
        super().__init__(model=step, args=args, train_dataset=train_rows, eval_dataset=no_rows, data_collator=collate)
        self.step, self.name = step, name
        self.bar: Bar | None = None
        if step.sharded:  # else accelerate would wrap sharded weights in DistributedDataParallel
            step.__dict__["_is_accelerate_prepared"] = True
        self.loss_parts: dict[str, list[Tensor]] = {}
        self.step_losses: list[Tensor] = []  # of the micro-batches of an optimiser step
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.add_callback(KeepSteps(step, args))
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(Path(str(args.output_dir)).with_suffix(TENSORBOARD))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the step's loss; its other parts are averaged until the next log line."""
        share = float(torch.tensor(self.state.global_step / max(self.state.max_steps, 1)))  # rounded to float32
        # the Trainer wraps a model that is not sharded in autocast
        with self.accelerator.autocast() if self.step.sharded else nullcontext():
            outputs = model(**inputs, progress=share)
        for name, value in outputs.items():
            if name != "loss":
                self.loss_parts.setdefault(name, []).append(value.detach())
        loss = outputs["loss"]
        self.step_losses.append(loss.detach())
        return (loss, outputs) if return_outputs else loss

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], None]:
        """Return the micro-batches of an optimiser step, each with the weight of a token, or row, in the whole step."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if batches:
            weights = weights_of_items([self.step.objective.num_items(batch) for batch in batches], device)
            batches = [{**batch, ITEM_WEIGHTS: weights} for batch in batches]
        return batches, None

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return super()._get_train_sampler(train_dataset) if self.order is None else self.order

    def training_step(self, model: nn.Module, inputs: Batch, *args: Any, **kwargs: Any) -> Tensor:
        """Run the Trainer's step; with gradient caching under DDP, average the gradients afterwards.

        Gradient caching runs one backward pass per chunk, and DistributedDataParallel synchronises in each. After the
        last micro-batch of an optimiser step, losses are checked, and an evaluation is requested where one is due.

        Raises:
            ValueError: a loss of the optimiser step is not finite.
        """
        if self.bar is None and self.is_world_process_zero() and not self.args.disable_tqdm:
            self.bar = progress(self.state.max_steps, self.name, "step", initial=self.state.global_step)
        cached = model if self.step.mini_batch_size is not None and isinstance(model, DistributedDataParallel) else None
        with nullcontext() if cached is None else cached.no_sync():
            loss = super().training_step(model, inputs, *args, **kwargs)
        if self.accelerator.sync_gradients:
            losses = torch.stack(self.step_losses).tolist()  # read together, for which the host waits once
            self.step_losses.clear()
            not_finite = [value for value in losses if not math.isfinite(value)]
            if not_finite:
                raise ValueError(
                    f"the loss is {not_finite[0]} at step {self.state.global_step + 1}; lower the learning rate, clip "
                    "gradients (training.max_grad_norm), or check the data of this batch"
                )
            if cached is not None:
                mean_gradients(self.step.trainable().values())
            if self.bar is not None:
                self.bar.update()
            if self.evaluation is not None and self.evaluation.points is not None:
                steps = evaluation_steps(
                    self.evaluation.points, last=self.state.max_steps, per_step=samples_per_step(self.args)
                )
                self.control.should_evaluate = self.state.global_step + 1 in steps
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the parts of the loss, averaged over micro-batches and processes like the loss, and write a log line.

        A part that is NaN in a micro-batch does not exist there.
        """
        if "loss" in logs:
            figures = {name: torch.stack(values) for name, values in self.loss_parts.items()}
            logs |= mean_of_figures({name: values[~values.isnan()].tolist() for name, values in figures.items()})
            self.loss_parts.clear()
        super().log(logs, *args, **kwargs)
        if "loss" in logs and self.is_world_process_zero():
            if self.bar is not None:
                self.bar.note(f"loss {logs['loss']:.4g}")
            parts = "  ".join(f"{name} {value:.4g}" for name, value in logs.items() if name != "epoch")
            logger.info("%s  step %d/%d  %s", self.name, self.state.global_step, self.state.max_steps, parts)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Score the current weights; keep the best, with early stopping after `patience` evaluations.

        The first process scores and broadcasts the scores.
        """
        assert self.evaluation is not None
        scores = [self.evaluation.score() if self.args.process_index == 0 else None]
        broadcast_object_list(scores)
        self.step.train()
        metrics = {f"eval_{name}": value for name, value in (scores[0] or {}).items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        curve = self.curve
        if self.args.process_index == 0:
            if self.evaluation.metric is not None and self.evaluation.best_point(curve) == curve[-1]:
                write_trained(self.step, self.best_weights, writes=self.args.should_save)
            self.evaluation.report(curve, self.state.max_steps)
        if self.evaluation.should_stop(curve):
            self.control.should_training_stop = True
            # a resumed run then sees that the stage is finished
            self.control.should_save = self.args.save_strategy != "no"
        return metrics

    def fit(self, checkpoint: Path | None) -> int:
        """Train to the end, resuming from a checkpoint if given; load the best step's weights if one is chosen.

        Returns:
            The number of optimiser steps of the weights.
        """
        if self.args.should_save and checkpoint is not None and (checkpoint / BEST).exists():
            link_or_copy(checkpoint / BEST, self.best_weights)  # an existing one may be of a later step
        self.accelerator.wait_for_everyone()
        state = None if checkpoint is None else TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        if checkpoint is not None and state is not None and self._is_done(state):
            # trained, but the stage's folder is not written
            read_trained(self.step, checkpoint / WEIGHTS, sealed=False)
            # evaluation.at may have been set after training had ended
            keeps_last = self.evaluation is not None and self.evaluation.metric is None
            if keeps_last and self.state.global_step not in [point["step"] for point in self.curve]:
                self.evaluate()
        else:
            if state is not None:
                self._resolve_shares(state.max_steps)
            try:
                with writing_to(Path(self.args.output_dir or ".")):
                    self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            except UnpicklingError as error:  # only tensors and numbers are read
                raise ValueError(
                    f"{checkpoint}: a file holds other objects than a trainer's tensors and numbers; it is not "
                    "read, since pickled objects can run code. Remove this checkpoint: --resume then takes an earlier "
                    "one, or starts the stage again"
                ) from error
            finally:
                if self.bar is not None:
                    self.bar.close()
        if self.evaluation is None or self.evaluation.metric is None:
            return self.state.global_step
        self.accelerator.wait_for_everyone()
        read_trained(self.step, self.best_weights)
        return self.evaluation.best_point(self.curve)["step"]

    def _resolve_shares(self, max_steps: int) -> None:
        """Turn intervals below 1, shares of the stage, into steps: the Trainer compares them with a checkpoint's."""
        for name in ("logging_steps", "eval_steps", "save_steps"):
            interval = getattr(self.args, name)
            if interval is not None and interval < 1:
                setattr(self.args, name, math.ceil(max_steps * interval))

    def _is_done(self, state: TrainerState) -> bool:
        """Return whether training ended at a checkpoint of this state; if so, take it over."""
        stopped = self.evaluation is not None and self.evaluation.should_stop(curve_from_log(state.log_history))
        if state.global_step < state.max_steps and not stopped:
            return False
        self.state = state
        return True

    @property
    def curve(self) -> list[Point]:
        """The learning curve so far."""
        return curve_from_log(self.state.log_history)

    @property
    def best_weights(self) -> Path:
        """The file of the best step's trained tensors."""
        return Path(self.args.output_dir or ".") / BEST

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir or ".")
        write_trained(self.step, folder / WEIGHTS, writes=self.args.should_save, sealed=False)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.step.sharded and self.optimizer is not None and self.lr_scheduler is not None:
            folder, writes = Path(output_dir), self.args.should_save
            checkpoints.write_sharded_optimizer(folder, self.optimizer, self.lr_scheduler, writes=writes)
        else:
            super()._save_optimizer_and_scheduler(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint and self.step.sharded and self.optimizer is not None and self.lr_scheduler is not None:
            checkpoints.read_sharded_optimizer(Path(checkpoint), self.optimizer, self.lr_scheduler)
        else:
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        read_trained(self.step, Path(resume_from_checkpoint) / WEIGHTS, sealed=False)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir or ".")
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save and not checkpoints.is_complete(checkpoint, checkpoints.files_needed(self.args)):
            shutil.rmtree(checkpoint, ignore_errors=True)
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            if self.evaluation is not None and self.evaluation.metric is not None and self.curve:
                link_or_copy(self.best_weights, checkpoint / BEST)
            checkpoints.seal(checkpoint)
            checkpoints.rotate(folder, MAX_CHECKPOINTS)
        self.accelerator.wait_for_everyone()

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if not sharding.is_sharded(model):  # shards are on their devices
            super()._move_model_to_device(model, device)
