"""A thin Trainer: saves what is trained, marks whole checkpoints, logs in words."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from safetensors.torch import save_file
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

from embrew.data.mixing import MixedOrder
from embrew.distributed import mean_gradients, mean_of_figures
from embrew.files.disk_errors import writing_to
from embrew.files.writing import atomic_path
from embrew.modeling.storage.tensor_files import read_tensors
from embrew.objectives.reductions import UNIT_WEIGHTS, weights_of_units
from embrew.training import checkpoints, sharding
from embrew.training.curves import EvaluateAt, samples_a_step
from embrew.training.progress import TrainingProgress
from embrew.training.step import TrainStep
from embrew.training.watch import Point, Watch, curve_of, to_log

logger = logging.getLogger(__name__)
WEIGHTS, BEST = "trainable.safetensors", "best.safetensors"
KEEP = 2  # checkpoints of a stage in progress


class StageTrainer(Trainer):
    """Hugging Face's Trainer around a `TrainStep`.

    Checkpoints hold the trained tensors only (safetensors) beside the Trainer's own optimiser, schedule and RNG
    state, and count from the moment their manifest is written. With `watch`, the stage is evaluated on the way; where a
    best step is chosen, its trained tensors lie beside the checkpoints, and in each of them.
    """

    def __init__(
        self,
        step: TrainStep,
        args: TrainingArguments,
        rows: Dataset,
        name: str,
        order: MixedOrder | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.order, self.watch = order, watch
        if args.n_gpu > 1:  # the Trainer would cut batches up for DataParallel, which ours are not made for
            args._n_gpu = 1
            logger.warning("%s  one process uses one GPU of several; see docs/how-to/multi-gpu.md", name)

        def collate(batch: Sequence[dict[str, Any]]) -> dict[str, Any]:
            epoch = int(self.state.epoch or 0)
            return step.objective.collate(batch, step.encoder, seed=args.seed * 1_000_003 + epoch)

        # The Trainer wants data to evaluate on; what is evaluated on is the watch's own affair.
        nothing = None if watch is None else rows.select([])
        super().__init__(model=step, args=args, train_dataset=rows, eval_dataset=nothing, data_collator=collate)
        self.step = step
        if step.sharded:  # or accelerate would wrap what is in pieces in DistributedDataParallel
            step.__dict__["_is_accelerate_prepared"] = True
        self.parts: dict[str, list[float]] = {}
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.progress = None if args.disable_tqdm else TrainingProgress(name)
        if self.progress is not None:
            self.add_callback(self.progress)
        self.add_callback(LogInWords(name))
        if watch is not None and watch.at is not None:
            self.add_callback(EvaluateAt(watch.at, samples_a_step(args)))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The step's loss; its other parts are averaged until the next log line."""
        progress = torch.tensor(self.state.global_step / max(self.state.max_steps, 1))
        with self.accelerator.autocast() if self.step.sharded else nullcontext():  # elsewhere the model's own business
            outputs = model(**inputs, progress=progress)
        for name, value in outputs.items():
            if name != "loss":
                self.parts.setdefault(name, []).append(float(value))
        loss = outputs["loss"]
        if not torch.isfinite(loss):
            raise ValueError(
                f"the loss is {float(loss.detach())} at step {self.state.global_step + 1}; lower the learning rate, "
                "clip gradients (training.max_grad_norm), or look at the data of this batch"
            )
        return (loss, outputs) if return_outputs else loss

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], None]:
        """The micro-batches of an optimiser step, each with what a token, or row, counts in the whole step."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if batches:
            weights = weights_of_units([self.step.objective.counts(batch) for batch in batches], device)
            batches = [{**batch, UNIT_WEIGHTS: weights} for batch in batches]
        return batches, None

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return super()._get_train_sampler(train_dataset) if self.order is None else self.order

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """The Trainer's own, except that several processes average the gradients of a cached step themselves.

        Its backward pass is one pass a chunk, and DistributedDataParallel allows one in all.
        """
        if self.step.chunks is None or not isinstance(model, DistributedDataParallel):
            return super().training_step(model, inputs, *args, **kwargs)
        with model.no_sync():
            loss = super().training_step(model, inputs, *args, **kwargs)
        if self.accelerator.sync_gradients:
            mean_gradients(self.step.trainable().values())
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the parts to a log line, averaged over micro-batches and processes as the loss is."""
        if "loss" in logs:
            logs |= mean_of_figures(self.parts)
            self.parts.clear()
        super().log(logs, *args, **kwargs)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if not sharding.is_sharded(model):  # pieces are where they belong
            super()._move_model_to_device(model, device)

    def trained(self) -> dict[str, Tensor]:
        """What was trained, whole, on the CPU; all processes must call."""
        return {name: sharding.whole(parameter) for name, parameter in self.step.trainable().items()}

    @property
    def curve(self) -> list[Point]:
        """Scores at the steps evaluated so far."""
        return curve_of(self.state.log_history)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Score the weights as they are; keep the best, and stop where none better has come for long enough.

        The first process scores, and tells the others.
        """
        if self.watch is None:
            raise ValueError("a stage without a watch is not evaluated")
        told = [self.watch.score() if self.args.process_index == 0 else None]
        scores = broadcast_object_list(told)[0]
        self.step.train()
        metrics = to_log(scores)
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        curve = self.curve
        if self.args.process_index == 0:
            if self.watch.metric is not None and self.watch.best(curve) == curve[-1]:
                self._write_trained(self._best)
            self.watch.report(curve, self.state.max_steps)
        if self.watch.is_over(curve):
            self.control.should_training_stop = True
            self.control.should_save = self.args.save_strategy != "no"  # so that it need not find this out again
        return metrics

    @property
    def _best(self) -> Path:
        return Path(self.args.output_dir or ".") / BEST

    def _write_trained(self, path: Path) -> None:
        """Write what was trained; all processes must call where weights are in pieces, and the first one writes."""
        tensors = self.trained()
        if self.args.should_save:
            with atomic_path(path) as temporary:
                save_file(tensors, temporary)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        self._write_trained(Path(output_dir or self.args.output_dir or ".") / WEIGHTS)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.step.sharded or self.optimizer is None or self.lr_scheduler is None:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        state = sharding.whole_state(self.optimizer.state_dict())  # as of one process: any number of them may go on
        if self.args.should_save:
            torch.save(state, Path(output_dir) / "optimizer.pt")
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not self.step.sharded or self.optimizer is None or self.lr_scheduler is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        state = torch.load(Path(checkpoint) / "optimizer.pt", map_location="cpu", weights_only=True)
        self.optimizer.load_state_dict(sharding.pieces_of_state(state, self.optimizer))
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self.load_weights(Path(resume_from_checkpoint) / WEIGHTS)

    def load_weights(self, path: Path) -> None:
        """Put a file's tensors into the model.

        Raises:
            ValueError: it was written for other parameters.
        """
        tensors, parameters = read_tensors(path), self.step.trainable()
        if tensors.keys() != parameters.keys():
            odd = sorted(tensors.keys() ^ parameters.keys())
            raise ValueError(f"{path} holds other parameters than are trained now: {', '.join(odd[:3])}")
        put_trained(self.step, tensors)

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
            if self.watch is not None and self.watch.metric is not None and self.curve:
                _same_file(self._best, checkpoint / BEST)
            checkpoints.seal(checkpoint)
            checkpoints.rotate(folder, KEEP)
        self.accelerator.wait_for_everyone()

    def fit(self, checkpoint: Path | None) -> int:
        """Train to the end, from a checkpoint where there is one; a stage whose best step is chosen ends with that.

        Returns:
            Optimiser steps that the weights have had.
        """
        if self.args.should_save and checkpoint is not None and (checkpoint / BEST).exists():
            _same_file(checkpoint / BEST, self._best)  # the one there may be of a later step
        self.accelerator.wait_for_everyone()
        if checkpoint is not None and self._is_done(checkpoint):
            self.load_weights(checkpoint / WEIGHTS)  # only the stage's folder was not written yet
        else:
            try:
                with writing_to(Path(self.args.output_dir or ".")):
                    self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            except UnpicklingError as error:  # tensors and numbers only are read, whatever the checkpoint holds
                raise ValueError(checkpoints.not_state(checkpoint)) from error
            finally:
                if self.progress is not None:
                    self.progress.close()
        if self.watch is None or self.watch.metric is None:
            return self.state.global_step
        self.accelerator.wait_for_everyone()
        self.load_weights(self._best)
        return self.watch.best(self.curve)["step"]

    def _is_done(self, checkpoint: Path) -> bool:
        """Whether nothing is left to train after a checkpoint; then its state becomes the trainer's."""
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        stopped = self.watch is not None and self.watch.is_over(curve_of(state.log_history))
        if state.global_step < state.max_steps and not stopped:
            return False
        self.state = state
        return True


def files_needed(args: TrainingArguments) -> tuple[str, ...]:
    """Return the files, as patterns, without which a checkpoint cannot be continued to the same result."""
    found: tuple[str, ...] = (WEIGHTS, "trainer_state.json")
    if not args.save_only_model:
        found += ("rng_state*.pth",)
        if args.deepspeed_plugin is None:  # it saves optimiser and schedule in folders of its own
            found += ("optimizer.pt", "scheduler.pt")
    return found


def _same_file(source: Path, target: Path) -> None:
    """Another name for a file that is never written to again; a copy where the disk knows no links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def put_trained(step: TrainStep, tensors: Mapping[str, Tensor]) -> None:
    """Put trained tensors, whole, into a step's parameters; all processes that share the parameters must call."""
    for name, parameter in step.trainable().items():
        sharding.put(parameter, tensors[name])


class LogInWords(TrainerCallback):
    """Log lines through `logging` instead of printed dicts."""

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
        """One line a log event of the first process."""
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        parts = "  ".join(f"{name} {value:.4g}" for name, value in logs.items() if name != "epoch")
        logger.info("%s  step %d/%d  %s", self.name, state.global_step, state.max_steps, parts)
