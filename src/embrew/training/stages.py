"""A recipe's stages in order: each ends as a saved encoder; what is finished is kept, what was stopped goes on."""

from __future__ import annotations

import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import concatenate_datasets
from transformers import set_seed

from embrew import build
from embrew.distributed import claimed_by_first, decided
from embrew.files.public_paths import check_path_known
from embrew.files.writing import write_json
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.attention import Attention
from embrew.modeling.model.precision import train_in_float32
from embrew.modeling.storage.opening import final_stage
from embrew.recipe import Recipe, StageConfig
from embrew.training import checkpoints, sharding
from embrew.training.curves import samples_a_step
from embrew.training.gradcache import Chunks
from embrew.training.launched import refuse
from embrew.training.origin import STAGE, Origin
from embrew.training.runlog import RUN, RunLog
from embrew.training.step import TrainStep
from embrew.training.trainer import StageTrainer, files_needed, put_trained
from embrew.training.watch import Evaluate

logger = logging.getLogger(__name__)
COMPUTED, TRAINING = "computed", "training into"


def train(
    recipe: Recipe,
    output_dir: str | Path,
    *,
    resume: bool = False,
    evaluate: Evaluate | None = None,
    verify: str = "fast",
    start: str | Path | None = None,
) -> Encoder:
    """Train a recipe.

    Writes `output_dir/<stage>/` (a complete encoder) at the end of every stage and `output_dir/run.json` with scores
    and times. With `evaluate`, the untrained encoder is scored first and the encoder after every stage. Where the
    recipe's `evaluation.every` asks for it, it is scored within a stage too, and the stage ends with its best weights;
    with `evaluation.at`, it is scored at log-spaced samples, and the stage ends with its last.

    Args:
        recipe: what to train.
        output_dir: where to; must not hold a run already, unless `resume`.
        resume: skip stages that are finished with the same settings, and go on from the newest whole checkpoint.
        evaluate: from an encoder to scores; `dev`, and `guard` and `guard/NAME` if there, are shown. If it is a
            `DevSets`, training rows that hold a text of these sets are counted.
        verify: how a saved stage is proven: `fast`, `full`, `off`.
        start: a trained encoder's folder to begin with, in place of the recipe's language model.

    Returns:
        The encoder after the last stage.

    Raises:
        FileExistsError: `output_dir` holds a run and `resume` is off; another process trains into it.
        FileNotFoundError: a path of the recipe was stored by name.
        ValueError: a finished stage was trained with other settings or on other data; too few rows; anything a recipe
            can get wrong; `evaluation.metric` is no score; `start` has another template, attention or pooling than the
            recipe.
    """
    if not recipe.stages:
        raise ValueError("the recipe has no stages, so there is nothing to train; embrew evaluate takes it as it is")
    with sharding.asked_by_launcher() as sharded:
        PartialState(cpu=not torch.accelerator.is_available())  # starts the process group under torchrun
        with claimed_by_first(Path(output_dir), TRAINING):
            run = Run(
                recipe, Path(output_dir), resume=resume, evaluate=evaluate, verify=verify, start=start, sharded=sharded
            )
            return run.all_stages()


class Run:
    """One run of a recipe in one folder."""

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
        self.start = None if start is None else final_stage(Path(start))
        self.verify = verify
        self.trusts = recipe.encoder.trust_remote_code
        self.before: dict[str, Any] | None = None  # the record of `start`
        self.origin = Origin(recipe, folder, self.start)
        self.begun: dict[int, dict[str, Any]] = {}  # what stages of this process were begun with
        self.process = PartialState(cpu=not torch.accelerator.is_available())
        self.sharded = sharded and self.process.num_processes > 1
        build.check_recipe(recipe, here=True)  # wrong settings are found before anything is loaded
        self.objectives = [build.objective(stage.objective) for stage in recipe.stages]
        for index, stage in enumerate(recipe.stages):
            watched = recipe.watched(index) is not None
            refuse(stage, self.objectives[index], self._arguments(index), sharded=self.sharded, watched=watched)
        self.log = RunLog(recipe, folder, evaluate, writes=self.process.is_main_process)
        if (folder / RUN).exists() and not resume:
            raise FileExistsError(f"{folder} holds a run already; say --resume to go on, or choose another folder")
        self.process.wait_for_everyone()  # all have looked before the first one writes

    def all_stages(self) -> Encoder:
        """Run what is not finished."""
        finished = decided(self._finished)
        self.log.write()
        encoder: Encoder | None = None
        for index in range(len(self.recipe.stages)):
            if finished[index]:
                logger.info("%s  finished before, skipped", self.recipe.stages[index].name)
                if self.process.is_main_process:  # checkpoints of a run that was stopped between saving and tidying up
                    shutil.rmtree(self._arguments(index).output_dir, ignore_errors=True)
                encoder = None
            else:
                encoder = self.stage(index)
        return encoder or Encoder.from_pretrained(
            self._place(len(self.recipe.stages) - 1), device=self.process.device, trust_remote_code=self.trusts
        )

    def stage(self, index: int) -> Encoder | None:
        """Train one stage and save it; the encoder, or None where this process only held pieces of it."""
        stage, place = self.recipe.stages[index], self._place(index)
        encoder = self._train(index)
        if self.process.is_main_process and encoder is not None:
            self.log.write()  # first: once the stage is there, nothing is left to be done for it
            encoder.record = self.log.record(index, self.before)
            encoder.save_pretrained(
                place,
                overwrite=self.resume,
                verify=self.verify,
                recipe=self.recipe.public().to_yaml(),
                extra={STAGE: json.dumps(self.begun[index], indent=2, sort_keys=True)},
            )
            shutil.rmtree(self._arguments(index).output_dir, ignore_errors=True)
        self.process.wait_for_everyone()
        logger.info("%s  saved and proven: %s", stage.name, place)
        return encoder

    def _train(self, index: int) -> Encoder | None:
        """The encoder after a stage's steps, scored; None where this process only held pieces of it."""
        stage, objective = self.recipe.stages[index], self.objectives[index]
        encoder = self._start(index)
        if index == 0:
            self.log.score("base", encoder)
        self._set_up(index, encoder)
        self._begin_work(index)
        args = self._arguments(index)
        keep = Path(args.output_dir) / COMPUTED
        with torch.autocast(self.process.device.type, torch.bfloat16, enabled=args.bf16):  # as the steps are computed
            parts = build.datasets(stage, objective, encoder, keep=keep, reserved=self.log.reserved)
        rows = parts[0] if len(parts) == 1 else concatenate_datasets(parts)
        order = build.order(stage, [len(part) for part in parts], objective, seed=self.recipe.seed)
        needed = args.per_device_train_batch_size * self.process.num_processes
        if args.dataloader_drop_last and len(rows) < needed:
            raise ValueError(
                f"stage {stage.name}: {len(rows)} rows, fewer than one batch of {needed}; lower batch.size"
            )
        logger.info("%s  %d rows, %s", stage.name, len(rows), _trainable(encoder))
        if encoder.backbone.trains_all and args.bf16:
            logger.info("%s  weights are trained in float32 and computed with in bfloat16 (autocast)", stage.name)
        self.log.count(stage.name, a_step=samples_a_step(args), an_epoch=len(rows))
        self.log.look_at(stage, parts)
        began = time.perf_counter()
        if self.sharded:
            logger.info("%s  weights in %d pieces (FSDP2)", stage.name, self.process.num_processes)
            sharding.shard(encoder, self.process.device, compute=torch.bfloat16 if args.bf16 else None)
        watch = self.log.watch(index, encoder)
        trainer = StageTrainer(TrainStep(encoder, objective, _chunks(stage)), args, rows, stage.name, order, watch)
        steps = trainer.fit(checkpoints.newest(Path(args.output_dir), files_needed(args)) if self.resume else None)
        self.log.count(stage.name, steps=trainer.state.global_step)
        self.log.values["seconds"][stage.name] = round(time.perf_counter() - began, 1)
        if self.sharded:  # begun again as it was, and what was trained is put in
            trained = trainer.trained()
            del trainer, encoder
            if not self.process.is_main_process:
                return None
            encoder = self._start(index)
            self._set_up(index, encoder)
            put_trained(TrainStep(encoder, objective), trained)
        encoder.steps += steps
        encoder.backbone.zero_grad(set_to_none=True)
        encoder.eval()
        if watch is None:
            self.log.score(stage.name, encoder)
        else:
            self.log.keep(stage.name, watch, trainer.curve)
        return encoder

    def _begin_work(self, index: int) -> None:
        """The folder of checkpoints, and of what is computed once: empty, or of a run with these settings."""
        work = Path(self._arguments(index).output_dir)

        def begin() -> None:
            if not self.resume:
                shutil.rmtree(work, ignore_errors=True)
            self.begun[index] = self.origin.settings(index)
            if not self.origin.is_of(work, index):
                write_json(work / STAGE, self.begun[index])

        decided(begin)

    def _set_up(self, index: int, encoder: Encoder) -> None:
        encoder.train()
        stage = self.recipe.stages[index]
        for later in self.recipe.stages[index:]:  # before anything is trained
            if later.attention is not None:
                encoder.backbone.check_attention(Attention(later.attention))
        if stage.attention is not None:
            encoder.use_attention(stage.attention)
        for rows in encoder.backbone.learned.values():
            rows.requires_grad_(stage.train_memory)
        self.objectives[index].setup(encoder)
        train_in_float32(encoder)
        if build.autocasts(self.recipe, self.process.device):
            encoder.backbone.round_frozen_lm(torch.bfloat16)

    def _start(self, index: int) -> Encoder:
        """The encoder a stage begins with: the recipe's own, or the one before, its adapter continued or merged."""
        set_seed(self.recipe.seed)
        source = self._place(index - 1) if index else self.start
        if source is None:
            return build.encoder(self.recipe, device=self.process.device)
        merge = self.recipe.stages[index].adapter == "merge"
        encoder = Encoder.from_pretrained(
            source,
            dtype=build.opening_dtype(self.recipe, self.process.device, source=source),
            device=self.process.device,
            attn_implementation=self.recipe.encoder.attn_implementation,
            merge_adapter=merge,
            trust_remote_code=self.trusts,
        )
        if encoder.base.kind == "folder" and encoder.base_folder is None:  # its weights are all trained ones
            encoder.base_folder = Path(self.recipe.encoder.model)
        self.before = encoder.record if not index else (encoder.record or {}).get("before")
        if not index:
            build.check_same_encoder(self.recipe, encoder, source)
            encoder.recipe = self.recipe.public().to_yaml()
        if not build.carries_on(encoder, self.recipe, source):
            build.make_trainable(encoder, self.recipe, stage=index)
        return encoder

    def _arguments(self, index: int) -> Any:
        stage = self.recipe.stages[index]
        work, watched = self.folder / f"{stage.name}.work", self.recipe.watched(index)
        every = None if watched is None else watched.every
        autocast = build.autocasts(self.recipe, self.process.device)
        return build.training_arguments(
            stage, self.objectives[index], work, seed=self.recipe.seed, every=every, autocast=autocast
        )

    def _place(self, index: int) -> Path:
        return self.folder / self.recipe.stages[index].name

    def _finished(self) -> list[bool]:
        """Which stages are there, trained with these settings; paths of the others are looked at."""
        finished = [self.origin.is_of(self._place(index), index) for index in range(len(self.recipe.stages))]
        if not finished[0] and self.start is None:
            check_path_known(self.recipe.encoder.model, "encoder.model")
        for stage, done in zip(self.recipe.stages, finished, strict=True):
            several = isinstance(stage.data, list)
            for number, config in enumerate(stage.datasets):
                for path in [config.path] if isinstance(config.path, str) else config.path:
                    if not done:
                        key = f"stages.{stage.name}.data.{number}.path" if several else f"stages.{stage.name}.data.path"
                        check_path_known(path, key)
        return finished


def _chunks(stage: StageConfig) -> Chunks | None:
    if stage.batch is None or not (stage.batch.mini_batch_size or stage.batch.mini_batch_num_tokens):
        return None
    return Chunks(rows=stage.batch.mini_batch_size, tokens=stage.batch.mini_batch_num_tokens)


def _trainable(encoder: Encoder) -> str:
    counts = [p.numel() for p in encoder.parameters() if p.requires_grad]
    share = sum(counts) / sum(p.numel() for p in encoder.parameters())
    return f"{sum(counts):,} of the weights trained ({share:.1%})"
