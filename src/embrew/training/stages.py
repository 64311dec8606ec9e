"""Train a recipe's stages in order and save the encoder after each; finished stages are skipped, others resume."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from transformers import TrainingArguments

from embrew import assembly
from embrew.data.mixing import MixedOrder
from embrew.data.overlap import set_aside
from embrew.distributed import claimed_by_first, decided
from embrew.encoder import Encoder
from embrew.files.names import check_path_known
from embrew.methods import Objective
from embrew.methods.gap import held_out_of
from embrew.model.compiled import compiled_layers
from embrew.recipe import Recipe, StageConfig
from embrew.storage.opening import final_stage
from embrew.training import sharding
from embrew.training.gradcache import Chunks
from embrew.training.launch_checks import check_launch
from embrew.training.monitoring.concerns import loss_lines
from embrew.training.monitoring.evaluation_steps import samples_per_step
from embrew.training.monitoring.run_json import RUN, RunResults
from embrew.training.monitoring.scores import Evaluate
from embrew.training.resuming import checkpoints
from embrew.training.resuming.checkpoint_files import files_needed, put_trained, trained_tensors
from embrew.training.resuming.processes import keep_rows_per_step
from embrew.training.resuming.stage_json import STAGE, StageSettings
from embrew.training.stage_start import check_data_paths, prepare_encoder, starting_encoder
from embrew.training.step import TrainStep
from embrew.training.trainer import StageTrainer

logger = logging.getLogger(__name__)
COMPUTED, TRAINING = "computed", "training into"
Announce = Callable[[int, Encoder, Objective, Dataset, MixedOrder | None, bool], None]
"""Stage, encoder, objective, rows, their order, whether weights are sharded."""


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
    with sharding.asked_by_launcher() as sharded:
        PartialState(cpu=not torch.accelerator.is_available())  # starts the process group under torchrun
        with claimed_by_first(Path(output_dir), TRAINING):
            run = Run(
                recipe, Path(output_dir), resume=resume, evaluate=evaluate, verify=verify, start=start, sharded=sharded
            )
            run.announce = announce
            run.results.add_command(command)
            return run.all_stages()


class Run:
    """A run of a recipe in a folder."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        resume: bool,
        evaluate: Evaluate | None,
        verify: str,
        start: str | Path | None = None,
        sharded: bool = False,
    ) -> None:
        self.recipe, self.folder, self.resume = recipe, folder, resume
        self.announce: Announce | None = None
        self.start = None if start is None else final_stage(Path(start))
        self.verify = verify
        self.trusts = recipe.encoder.trust_remote_code
        self.before: dict[str, Any] | None = None  # card facts of `start`
        self.settings = StageSettings(recipe, folder, self.start)
        self.arithmetic = self.settings.arithmetic(len(recipe.stages) - 1)
        self.started_with: dict[int, dict[str, Any]] = {}  # settings of stages of this process
        self.process = PartialState(cpu=not torch.accelerator.is_available())
        self.sharded = sharded and self.process.num_processes > 1
        if self.sharded and recipe.encoder.quantization is not None:
            raise ValueError(
                "encoder.quantization under FSDP2: 4-bit weights cannot be sharded; train with plain data parallelism "
                "(torchrun, or launch/ddp), where each process holds them all, or leave quantization out"
            )
        assembly.check_recipe(recipe, here=True)  # invalid settings are found before anything is loaded
        self.objectives = [assembly.objective(stage.objective) for stage in recipe.stages]
        for index, stage in enumerate(recipe.stages):
            evaluated = recipe.stage_evaluation(index) is not None
            check_launch(stage, self._arguments(index), sharded=self.sharded, evaluated=evaluated)
        self.results = RunResults(
            recipe, folder, evaluate, writes=self.process.is_main_process, arithmetic=self.arithmetic
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
        for index in range(len(self.recipe.stages)):
            if finished[index]:
                logger.info("%s  already finished, skipped", self.recipe.stages[index].name)
                if self.process.is_main_process:  # checkpoints of a run that was interrupted after saving
                    shutil.rmtree(self._work_folder(index), ignore_errors=True)
                encoder = None
            else:
                encoder = self.stage(index)
        return encoder or Encoder.from_pretrained(
            self._stage_folder(len(self.recipe.stages) - 1),
            device=self.process.device,
            merge_adapter=False,
            trust_remote_code=self.trusts,
        )

    def stage(self, index: int) -> Encoder | None:
        """Train and save one stage; return the encoder, or None where this process only held shards of it."""
        stage, place = self.recipe.stages[index], self._stage_folder(index)
        encoder = self._train(index)
        if self.process.is_main_process and encoder is not None:
            self.results.write()  # before the stage's folder, which marks it as finished
            encoder.record = self.results.facts_for_card(index, self.before)
            encoder.save_pretrained(
                place,
                overwrite=self.resume,
                verify=self.verify,
                recipe=self.recipe.public().to_yaml(),
                extra={STAGE: json.dumps(self.started_with[index], indent=2, sort_keys=True)},
            )
            shutil.rmtree(self._work_folder(index), ignore_errors=True)
        self.process.wait_for_everyone()
        logger.info("%s  saved and verified: %s" if self.verify != "off" else "%s  saved: %s", stage.name, place)
        return encoder

    def _train(self, index: int) -> Encoder | None:
        """Train a stage and score it; return the encoder, or None where this process only held shards of it."""
        stage, objective = self.recipe.stages[index], self.objectives[index]
        encoder = self._start(index)
        if index == 0:
            self.results.score("base", encoder)
        prepare_encoder(encoder, self.recipe, index, objective)
        begun, held_out = self._prepare_work_folder(index)
        args = self._arguments(index)
        keep_rows_per_step(stage, objective, args, encoder, begun=begun)
        rows, order, held = self._rows(index, encoder, args, begun, held_out)
        if self.announce is not None and self.process.is_main_process:
            self.announce(index, encoder, objective, rows, order, self.sharded)
        gap = self.results.gap_closed(index, objective, held, encoder)
        began = time.perf_counter()
        if self.sharded:
            logger.info("%s  weights sharded over %d processes (FSDP2)", stage.name, self.process.num_processes)
            sharding.shard(encoder, self.process.device, compute=torch.bfloat16 if args.bf16 else None)
        evaluation = self.results.stage_evaluation(index, encoder, gap)
        trainer = StageTrainer(TrainStep(encoder, objective, _chunks(stage)), args, rows, stage.name, order, evaluation)
        newest = checkpoints.newest(self._work_folder(index), files_needed(args)) if self.resume else None
        with compiled_layers(encoder.backbone.inner) if stage.training.get("torch_compile") else nullcontext():
            steps = trainer.fit(newest)
        self.results.add_counts(stage.name, steps=trainer.state.global_step)
        self.results.values.setdefault("losses", {})[stage.name] = loss_lines(trainer.state.log_history)
        self.results.values["seconds"][stage.name] = round(time.perf_counter() - began, 1)
        if self.sharded:  # open the encoder again, and write the trained tensors into it
            trained = trained_tensors(trainer.step)
            del trainer, encoder
            if not self.process.is_main_process:
                return None
            encoder = self._start(index)
            prepare_encoder(encoder, self.recipe, index, objective)
            put_trained(TrainStep(encoder, objective), trained)
        encoder.steps += steps
        encoder.arithmetic = self.arithmetic[stage.name]
        encoder.backbone.zero_grad(set_to_none=True)
        encoder.eval()
        if evaluation is None:
            self.results.score(stage.name, encoder)
        else:
            self.results.add_curve(stage.name, evaluation, trainer.curve)
        if gap is not None:
            gap.finish(encoder, steps, [] if evaluation is None else trainer.curve)
        return encoder

    def _start(self, index: int) -> Encoder:
        source = self._stage_folder(index - 1) if index else self.start
        encoder = starting_encoder(self.recipe, index, source, device=self.process.device)
        if source is not None:
            self.before = (encoder.record or {}).get("before") if index else encoder.record
        return encoder

    def _rows(
        self, index: int, encoder: Encoder, args: TrainingArguments, begun: int, held_out: int
    ) -> tuple[Dataset, MixedOrder | None, list[dict[str, Any]]]:
        """Return the rows of a stage, begun in some number of processes, their order, and `held_out` further rows.

        They are logged and recorded.
        """
        stage, objective = self.recipe.stages[index], self.objectives[index]
        keep = self._work_folder(index) / COMPUTED
        with torch.autocast(self.process.device.type, torch.bfloat16, enabled=args.bf16):  # as in training steps
            parts = assembly.datasets(
                stage,
                objective,
                encoder,
                keep=keep,
                reserved=self.results.reserved,
                rejected=self.results.rejected(stage.name),
            )
        parts, held = set_aside(parts, held_out)
        if held:
            logger.info("%s  %d texts are set aside, to measure the share of the gap closed", stage.name, len(held))
        rows = parts[0] if len(parts) == 1 else concatenate_datasets(parts)
        sizes = [len(part) for part in parts]
        order = assembly.order(stage, sizes, objective, seed=self.recipe.seed, processes=begun)
        if args.dataloader_drop_last:
            assembly.check_fills_batch(stage, len(rows), args.per_device_train_batch_size * self.process.num_processes)
        logger.info("%s  %d rows, %s", stage.name, len(rows), _trainable(encoder))
        self.results.values.setdefault("arithmetic", {})[stage.name] = self.arithmetic[stage.name]
        if args.bf16:
            logger.info("%s  trained weights are float32, matrix products bfloat16 (training.bf16)", stage.name)
        self.results.add_counts(stage.name, a_step=samples_per_step(args), an_epoch=len(rows))
        self.results.add_data(stage, parts)
        return rows, order, held

    def _prepare_work_folder(self, index: int) -> tuple[int, int]:
        """Create the folder of checkpoints and cached data; keep an existing one if its settings are the same.

        Returns:
            The number of processes that the stage was begun in, and of texts that it sets aside.
        """
        work = self._work_folder(index)

        def begin() -> tuple[int, int]:
            if not self.resume:
                shutil.rmtree(work, ignore_errors=True)
            self.started_with[index] = self.settings.of_stage(index)
            held_out, processes = held_out_of(self.objectives[index]), self.process.num_processes
            return self.settings.begin(work, index, self.started_with[index], processes=processes, held_out=held_out)

        return decided(begin)

    def _arguments(self, index: int) -> TrainingArguments:
        stage = self.recipe.stages[index]
        evaluation = self.recipe.stage_evaluation(index)
        every = None if evaluation is None else evaluation.every
        autocast = self.arithmetic[stage.name] == "bfloat16"
        folder = self._work_folder(index)
        return assembly.training_arguments(
            stage, self.objectives[index], folder, seed=self.recipe.seed, every=every, autocast=autocast
        )

    def _work_folder(self, index: int) -> Path:
        return self.folder / f"{self.recipe.stages[index].name}.work"

    def _stage_folder(self, index: int) -> Path:
        return self.folder / self.recipe.stages[index].name

    def _finished(self) -> list[bool]:
        """Return whether each stage is finished with these settings; check the paths of the others."""
        finished = [self.settings.holds(self._stage_folder(index), index) for index in range(len(self.recipe.stages))]
        if not finished[0] and self.start is None:
            check_path_known(self.recipe.encoder.model, "encoder.model")
        for stage, done in zip(self.recipe.stages, finished, strict=True):
            if not done:
                check_data_paths(stage)
        return finished


def _chunks(stage: StageConfig) -> Chunks | None:
    if stage.batch is None or not (stage.batch.mini_batch_size or stage.batch.mini_batch_num_tokens):
        return None
    return Chunks(rows=stage.batch.mini_batch_size, tokens=stage.batch.mini_batch_num_tokens)


def _trainable(encoder: Encoder) -> str:
    counts = [p.numel() for p in encoder.parameters() if p.requires_grad]
    share = sum(counts) / sum(p.numel() for p in encoder.parameters())
    return f"{sum(counts):,} trained weights ({share:.1%})"
