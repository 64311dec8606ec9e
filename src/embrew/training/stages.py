"""Train the stages of a recipe in turn, resume, score, save."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from torch import Tensor
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from embrew import assembly
from embrew.data.fingerprints import set_aside
from embrew.data.mixing import MixedOrder
from embrew.distributed import claimed_by_first, decided
from embrew.encoder import Encoder
from embrew.files.names import check_path_known
from embrew.methods import Objective
from embrew.recipe import Recipe
from embrew.storage.card import without_scores
from embrew.storage.loading import final_stage
from embrew.training import checkpoints, sharding
from embrew.training.run_json import RUN, RunResults
from embrew.training.stage_evaluation import Evaluate, GapClosed, samples_per_step
from embrew.training.stage_json import STAGE, StageSettings
from embrew.training.step import Chunks, TrainStep
from embrew.training.trainer import StageTrainer

logger = logging.getLogger(__name__)
COMPUTED, TRAINING = "computed", "training into"
Announce = Callable[[int, Encoder, Objective, Dataset, MixedOrder | None, bool], None]
"""Stage, encoder, objective, rows, their order, whether weights are sharded."""
USE, VERSION, OFFLOAD = "ACCELERATE_USE_FSDP", "FSDP_VERSION", "FSDP_OFFLOAD_PARAMS"


@contextmanager
def sharding_requested() -> Iterator[bool]:
    """Yield whether FSDP was requested from `accelerate launch`; accelerate's own flag is cleared meanwhile.

    embrew shards by itself: accelerate would wrap the whole training step, which gradient caching does not support, and
    does nothing on CPUs.

    Raises:
        ValueError: FSDP version 1, or offloading to the CPU, is requested.
    """
    if os.environ.get(USE, "false").lower() != "true":
        yield False
        return
    if os.environ.get(VERSION, "1") != "2":
        raise ValueError("the launcher requests FSDP 1, which embrew does not support; set fsdp_version: 2")
    if os.environ.get(OFFLOAD, "false").lower() == "true":
        raise ValueError("the launcher requests fsdp_offload_params, which embrew does not support; set it to false")
    value = os.environ.pop(USE)
    try:
        yield True
    finally:
        os.environ[USE] = value


def check_launch(recipe: Recipe, index: int, args: TrainingArguments, *, sharded: bool) -> None:
    """Raise if stage `index` cannot be trained in the mode that the launcher requests.

    Args:
        recipe: of the run.
        index: of the stage.
        args: built from the stage's settings.
        sharded: whether weights are sharded (FSDP2).

    Raises:
        ValueError: names the unsupported combination, and an alternative.
    """
    stage = recipe.stages[index]
    for name in list(args.report_to or ()):  # the Trainer would raise later
        if name not in (*get_available_reporting_integrations(), "flyte"):  # transformers does not check for it
            extra = "'embrew[tensorboard]'" if name == "tensorboard" else f"the library of {name}"
            raise ValueError(
                f"stage {stage.name}: training.report_to={name} is not installed; pip install {extra}, or leave it out"
            )
    if sharded and recipe.encoder.quantization is not None:
        raise ValueError(
            "encoder.quantization under FSDP2: 4-bit weights cannot be sharded; train with plain data parallelism "
            "(torchrun, or launch/ddp), where each process holds them all, or leave quantization out"
        )
    if sharded and recipe.stage_evaluation(index) is not None:
        raise ValueError(
            f"stage {stage.name}: evaluation.every and at are not supported under FSDP2: during training, no "
            "process holds all weights; leave them out, and the stage is evaluated at its end"
        )
    if sharded and args.fp16:
        raise ValueError(f"stage {stage.name}: fp16 is not supported under FSDP2 (no gradient scaling); use bf16: true")
    if args.deepspeed_plugin is None:
        return
    if args.deepspeed_plugin.hf_ds_config.is_zero3():
        raise ValueError(
            f"stage {stage.name}: DeepSpeed ZeRO stage 3 is not supported, since embrew cannot gather its "
            "sharded weights; use FSDP2 (embrew recipe copy launch/fsdp2), or ZeRO stage 2"
        )
    if stage.batch is not None and (stage.batch.mini_batch_size or stage.batch.mini_batch_num_tokens):
        raise ValueError(
            f"stage {stage.name}: gradient caching is not supported under DeepSpeed: it runs one backward pass per "
            "chunk, and the engine expects one per step; leave out batch.mini_batch_…, or use FSDP2 (embrew recipe "
            "copy launch/fsdp2)"
        )


def train(
    recipe: Recipe,
    output_dir: str | Path,
    *,
    resume: bool = False,
    evaluate: Evaluate | None = None,
    verify: str = "fast",
    start: str | Path | None = None,
    command: Sequence[str] = (),
    announce: Announce | None = None,
) -> Encoder:
    """Train a recipe.

    Writes `output_dir/<stage>/` (a complete encoder) after every stage, and `output_dir/run.json` with scores and
    times. With `evaluate`, the untrained encoder and the encoder after every stage are scored. With the recipe's
    `evaluation.every`, the encoder is also scored within stages, and a stage ends with its best weights; with
    `evaluation.at`, it is scored after chosen numbers of samples, and a stage ends with its last weights.

    Args:
        recipe: what to train.
        output_dir: output folder; must not hold a run, unless `resume`.
        resume: skip stages that are finished with the same settings, and resume from the newest complete checkpoint.
        evaluate: returns an encoder's scores; `dev`, `guard` and the `guard/NAME` that got worse are logged. If it is a
            `DevSets`, training rows that hold a text of these sets are counted.
        verify: how a saved stage is verified: `fast`, `full`, `off`.
        start: folder of a trained encoder to start from, instead of the recipe's language model.
        command: words of the command line that starts the same run; `embrew runs` shows them.
        announce: called before the first step of each stage, in the first process: says what the stage will take.

    Returns:
        The encoder after the last stage.

    Raises:
        FileExistsError: `output_dir` holds a run and `resume` is off, or another process trains into it.
        FileNotFoundError: the recipe has a path of which only the name was saved.
        ValueError: invalid settings; a finished stage was trained with other settings or data; too few rows;
            `evaluation.metric` is not a score; `start` has another template, attention or pooling than the recipe.
    """
    if not recipe.stages:
        raise ValueError("the recipe has no stages, so there is nothing to train; evaluate it with embrew evaluate")
    with sharding_requested() as sharded:
        PartialState(cpu=not torch.accelerator.is_available())  # starts the process group under torchrun
        with claimed_by_first(Path(output_dir), TRAINING):
            run = Run(
                recipe,
                Path(output_dir),
                resume=resume,
                evaluate=evaluate,
                verify=verify,
                start=start,
                command=command,
                announce=announce,
                sharded=sharded,
            )
            return run.all_stages()


class Run:
    """A run of a recipe in a folder.

    Attributes:
        folders, work: of each stage: its folder, and that of checkpoints and cached data while it is in progress.
        objectives, arguments: of each stage.
        before: card facts of the encoder that training starts from, if it was trained before.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        resume: bool,
        evaluate: Evaluate | None,
        verify: str,
        start: str | Path | None = None,
        command: Sequence[str] = (),
        announce: Announce | None = None,
        sharded: bool = False,
    ) -> None:
        self.recipe, self.resume, self.verify, self.announce = recipe, resume, verify, announce
        self.folders = [folder / stage.name for stage in recipe.stages]
        self.work = [folder / f"{stage.name}.work" for stage in recipe.stages]
        self.start = None if start is None else final_stage(Path(start))
        self.before: dict[str, Any] | None = None
        self.settings = StageSettings(recipe, folder, self.start)
        self.arithmetic = self.settings.arithmetic(len(recipe.stages) - 1)
        self.process = PartialState(cpu=not torch.accelerator.is_available())
        self.sharded = sharded and self.process.num_processes > 1
        assembly.check_recipe(recipe, here=True)  # invalid settings are found before anything is loaded
        self.objectives = [assembly.objective(stage.objective) for stage in recipe.stages]
        self.arguments: list[assembly.StageArguments] = []
        for index, stage in enumerate(recipe.stages):
            evaluation = recipe.stage_evaluation(index)
            args = assembly.training_arguments(
                stage,
                self.objectives[index],
                self.work[index],
                seed=recipe.seed,
                every=None if evaluation is None else evaluation.every,
                autocast=self.arithmetic[stage.name] == "bfloat16",
            )
            check_launch(recipe, index, args, sharded=self.sharded)
            self.arguments.append(args)
        self.results = RunResults(
            recipe,
            folder,
            evaluate,
            writes=self.process.is_main_process,
            arithmetic=self.arithmetic,
            command=command,
        )
        if (folder / RUN).exists() and not resume:
            raise FileExistsError(
                f"{folder} holds a run already; give --resume to continue it, or choose another folder"
            )
        self.process.wait_for_everyone()  # all processes have checked before the first one writes

    def all_stages(self) -> Encoder:
        """Train the stages that are not finished; return the encoder after the last one."""
        finished = decided(self._finished)
        self.results.write()
        encoder: Encoder | None = None
        for index, stage in enumerate(self.recipe.stages):
            if finished[index]:
                logger.info("%s  already finished, skipped", stage.name)
                if self.process.is_main_process:  # checkpoints of a run that was interrupted after saving
                    shutil.rmtree(self.work[index], ignore_errors=True)
                encoder = None
            else:
                encoder = self.stage(index)
        return encoder or Encoder.from_pretrained(
            self.folders[-1],
            device=self.process.device,
            merge_adapter=False,
            trust_remote_code=self.recipe.encoder.trust_remote_code,
        )

    def stage(self, index: int) -> Encoder | None:
        """Train, score and save a stage; return the encoder, or None where this process only held shards of it."""
        stage, objective = self.recipe.stages[index], self.objectives[index]
        encoder = self._start(index)
        if index == 0:
            self.results.score("base", encoder)
        assembly.prepare_encoder(encoder, self.recipe, index, objective)
        settings = decided(lambda: self._begin(index))
        rows, order, held_out = self._rows(index, encoder)
        if self.announce is not None and self.process.is_main_process:
            self.announce(index, encoder, objective, rows, order, self.sharded)
        gap = self.results.gap_closed(index, objective, held_out, encoder)
        trainer, steps = self._fit(index, encoder, rows, order, gap)
        evaluation, curve = trainer.evaluation, trainer.curve
        trained: Encoder | None = None if self.sharded else encoder
        if self.sharded:
            tensors = checkpoints.trained_tensors(trainer.step)
            del trainer, encoder
            trained = self._reopened(index, tensors)
        if trained is not None:
            trained.steps += steps
            trained.arithmetic = self.arithmetic[stage.name]
            trained.backbone.zero_grad(set_to_none=True)
            trained.eval()
            self.results.score_trained(stage.name, trained, evaluation, curve, gap, steps)
            if self.process.is_main_process:
                self._save(index, trained, settings, steps)
        self.process.wait_for_everyone()
        saved = "saved" if self.verify == "off" else "saved and verified"
        logger.info("%s  %s: %s", stage.name, saved, self.folders[index])
        return trained

    def _start(self, index: int) -> Encoder:
        """Open the encoder that a stage starts from; note the card facts of what the run started from."""
        source = self.folders[index - 1] if index else self.start
        encoder = assembly.starting_encoder(self.recipe, index, source, device=self.process.device)
        if source is not None:
            self.before = (encoder.record or {}).get("before") if index else encoder.record
        return encoder

    def _begin(self, index: int) -> dict[str, Any]:
        """Return a stage's settings and inputs, which its folder will hold; create or keep its work folder."""
        if not self.resume:
            shutil.rmtree(self.work[index], ignore_errors=True)
        settings = self.settings.of_stage(index)
        self.settings.begin(self.work[index], index, settings, processes=self.process.num_processes)
        return settings

    def _rows(self, index: int, encoder: Encoder) -> tuple[Dataset, MixedOrder | None, list[dict[str, Any]]]:
        """Return the rows of a stage, their order, and the rows that are set aside; they are logged and recorded."""
        stage, objective, args = self.recipe.stages[index], self.objectives[index], self.arguments[index]
        with torch.autocast(self.process.device.type, torch.bfloat16, enabled=args.bf16):  # as in training steps
            parts = assembly.datasets(
                stage,
                objective,
                encoder,
                keep=self.work[index] / COMPUTED,
                reserved=self.results.reserved,
                rejected=self.results.rejected(stage.name),
            )
        parts, held_out = set_aside(parts, objective.held_out)
        if held_out:
            logger.info("%s  %d texts are set aside, to measure the share of the gap closed", stage.name, len(held_out))
        rows = parts[0] if len(parts) == 1 else concatenate_datasets(parts)
        try:
            objective.check_rows(rows)
        except ValueError as error:
            raise ValueError(f"stage {stage.name}: {error}") from None
        order = assembly.order(stage, [len(part) for part in parts], objective, seed=self.recipe.seed)
        if args.dataloader_drop_last:
            assembly.check_fills_batch(stage, len(rows), args.per_device_train_batch_size * self.process.num_processes)
        trained = sum(p.numel() for p in encoder.parameters() if p.requires_grad)
        share = trained / sum(p.numel() for p in encoder.parameters())
        logger.info("%s  %d rows, %s trained weights (%s)", stage.name, len(rows), f"{trained:,}", f"{share:.1%}")
        if args.bf16:
            logger.info("%s  trained weights are float32, matrix products bfloat16 (training.bf16)", stage.name)
        self.results.add_data(stage, parts, per_step=samples_per_step(args))
        return rows, order, held_out

    def _fit(
        self, index: int, encoder: Encoder, rows: Dataset, order: MixedOrder | None, gap: GapClosed | None
    ) -> tuple[StageTrainer, int]:
        """Train an encoder, from the newest complete checkpoint if there is one.

        Returns:
            The trainer, and the number of optimiser steps of the encoder's weights.
        """
        stage, args, began = self.recipe.stages[index], self.arguments[index], time.perf_counter()
        if self.sharded:
            logger.info("%s  weights sharded over %d processes (FSDP2)", stage.name, self.process.num_processes)
            sharding.shard(encoder, self.process.device, compute=torch.bfloat16 if args.bf16 else None)
        chunks = None
        if stage.batch is not None and (stage.batch.mini_batch_size or stage.batch.mini_batch_num_tokens):
            chunks = Chunks(rows=stage.batch.mini_batch_size, tokens=stage.batch.mini_batch_num_tokens)
        step = TrainStep(encoder, self.objectives[index], chunks)
        evaluation = self.results.stage_evaluation(index, encoder, gap)
        trainer = StageTrainer(step, args, rows, stage.name, order, evaluation)
        newest = None
        if self.resume:
            newest = checkpoints.newest(self.work[index], checkpoints.files_needed(args), args.keep or ())
        steps = trainer.fit(newest)
        self.results.add_training(stage.name, trainer.state, time.perf_counter() - began)
        if not self.sharded and not all(bool(weight.isfinite().all()) for weight in step.trainable().values()):
            raise ValueError(
                f"stage {stage.name}: trained weights are not finite after step {steps}; lower the learning rate, or "
                "clip gradients (training.max_grad_norm)"
            )
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        if losses and not losses[-1] <= losses[0]:
            logger.warning(
                "%s  the training loss ends at %.4g, above its start, %.4g: the model may be worse than before; lower "
                "training.learning_rate, or train for longer",
                *(stage.name, losses[-1], losses[0]),
            )
        return trainer, steps

    def _reopened(self, index: int, tensors: dict[str, Tensor]) -> Encoder | None:
        """Open the encoder again in the first process, with the tensors that were trained in shards."""
        if not self.process.is_main_process:
            return None
        encoder = self._start(index)
        assembly.prepare_encoder(encoder, self.recipe, index, self.objectives[index])
        checkpoints.put_trained(TrainStep(encoder, self.objectives[index]), tensors)
        return encoder

    def _save(self, index: int, encoder: Encoder, settings: dict[str, Any], steps: int) -> None:
        """Save the encoder of a stage, which was trained for `steps` in it, and those of `training.keep`."""
        self.results.write()  # before the stage's folder, which marks it as finished
        encoder.record = self.results.card_facts(index, self.before)
        if self.arguments[index].keep:
            self._save_kept(index, encoder, steps)
        encoder.save_pretrained(
            self.folders[index],
            overwrite=self.resume,
            verify=self.verify,
            recipe=self.recipe.public().to_yaml(),
            extra={STAGE: json.dumps(settings, indent=2, sort_keys=True)},
        )
        shutil.rmtree(self.work[index], ignore_errors=True)

    def _save_kept(self, index: int, encoder: Encoder, steps: int) -> None:
        """Save the encoder after the steps of `training.keep`, without scores, which are those of another step."""
        name, step = self.recipe.stages[index].name, TrainStep(encoder, self.objectives[index])
        tensors = {key: tensor.clone() for key, tensor in checkpoints.trained_tensors(step).items()}
        record, total = encoder.record or {}, encoder.steps
        last = self.results.values["samples"][name]["steps"]  # the encoder's may be an earlier one, the best
        for number in sorted(set(self.arguments[index].keep or ())):
            if number > last:
                logger.warning("%s  step %d is not kept: the stage stopped before it", name, number)
                continue
            checkpoints.read_trained(step, checkpoints.kept_file(self.work[index], number))
            encoder.steps = total - steps + number
            encoder.record = without_scores(record)
            folder = self.folders[index].with_name(f"{name}{checkpoints.KEPT}{number}")
            encoder.save_pretrained(
                folder, overwrite=self.resume, verify=self.verify, recipe=self.recipe.public().to_yaml()
            )
        checkpoints.put_trained(step, tensors)
        encoder.record, encoder.steps = record, total

    def _finished(self) -> list[bool]:
        """Return whether each stage is finished with these settings; raise if others have paths of unknown folders."""
        finished = [self.settings.holds(folder, index) for index, folder in enumerate(self.folders)]
        if not finished[0] and self.start is None:
            check_path_known(self.recipe.encoder.model, "encoder.model")
        for stage, done in zip(self.recipe.stages, finished, strict=True):
            for key, config in [] if done else stage.placed_datasets:
                for path in config.paths:
                    check_path_known(path, f"stages.{stage.name}.{key}.path")
        return finished
