"""A run of a recipe in a folder: what its stages share, and the parts of a stage that `stages` puts in order."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from torch import Tensor

from embrew.data.fingerprints import set_aside
from embrew.data.mixing import MixedOrder
from embrew.distributed import from_main_process
from embrew.encoder import Encoder
from embrew.files.names import check_path_known
from embrew.methods.base import DataRow
from embrew.model.center import Groups, centered, check_components, fit_encoder, grouped, with_fit
from embrew.model.encoder_module import CardFacts
from embrew.recipe import Recipe, build
from embrew.storage.base_model import EMULATED, supports_natively
from embrew.storage.card import without_scores
from embrew.storage.loading import trained_folder
from embrew.training import checkpoints
from embrew.training.run_json import RUN, RunResults
from embrew.training.sharding import check_launch
from embrew.training.stage_evaluation import Evaluate, samples_per_step
from embrew.training.stage_json import STAGE, StageSettings
from embrew.training.step import TrainStep
from embrew.training.trainer import StageTrainer

logger = logging.getLogger(__name__)
MOST_CENTERED = 4096  # rows whose texts `pooling.center` is computed of
COMPUTED = "computed"  # folder of cached values, such as a reference model's, in the work folder of a stage


class StageRows(NamedTuple):
    """The training data of a stage.

    Attributes:
        rows: rows that are trained on.
        order: order in which several data sets are read; None: rows are shuffled.
        held_out: rows that are set aside, to measure the share of the gap closed.
    """

    rows: Dataset
    order: MixedOrder | None
    held_out: list[DataRow]


class Run:
    """A run of a recipe in a folder. Everything that can be checked before a model is opened is checked here.

    Attributes:
        folders: folder of each stage, a complete encoder once the stage is finished.
        work_folders: folder of each stage's checkpoints and cached values while the stage is in progress.
        objectives: objective of each stage.
        arguments: training arguments of each stage.
        compute_dtypes: dtype of the matrix products of each stage, by its name.
        results: content of `run.json`.
        sharded: whether weights are sharded over several processes (FSDP2).
        center_texts: texts that the mean of `pooling.center` is computed of: of rows at equal distances.
        start_facts: card facts of the encoder that training starts from, if it was trained before.
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
        sharded: bool = False,
    ) -> None:
        self.recipe, self.resume, self.verify = recipe, resume, verify
        self.folders = [folder / stage.name for stage in recipe.stages]
        self.work_folders = [folder / f"{stage.name}.work" for stage in recipe.stages]
        self.start = None if start is None else trained_folder(start)
        self.start_facts: CardFacts | None = None
        self.center_texts: Groups = {}
        self.settings = StageSettings(recipe, folder, self.start)
        self.compute_dtypes = self.settings.compute_dtypes(len(recipe.stages) - 1)
        self.process = PartialState(cpu=not torch.accelerator.is_available())
        self.sharded = sharded and self.process.num_processes > 1
        build.check_recipe(recipe, here=True)  # invalid settings are found before anything is loaded
        self.objectives = [build.objective(stage.objective) for stage in recipe.stages]
        self.arguments: list[build.StageArguments] = []
        for index, stage in enumerate(recipe.stages):
            evaluation = recipe.stage_evaluation(index)
            args = build.training_arguments(
                stage,
                self.objectives[index],
                self.work_folders[index],
                seed=recipe.seed,
                every=None if evaluation is None else evaluation.every,
                autocast=self.compute_dtypes[stage.name] == "bfloat16",
            )
            check_launch(recipe, index, args, sharded=self.sharded)
            self.arguments.append(args)
        self.results = RunResults(
            recipe,
            folder,
            evaluate,
            writes=self.process.is_main_process,
            compute_dtypes=self.compute_dtypes,
            command=command,
        )
        if (folder / RUN).exists() and not resume:
            raise FileExistsError(
                f"{folder} holds a run already; give --resume to continue it, or choose another folder"
            )
        self.process.wait_for_everyone()  # all processes have checked before the first one writes

    def finished_stages(self) -> list[bool]:
        """Return whether each stage is finished with these settings; raise if others have paths of unknown folders."""
        finished = [self.settings.holds(folder, index) for index, folder in enumerate(self.folders)]
        if not finished[0] and self.start is None:
            check_path_known(self.recipe.encoder.model, "encoder.model")
        for stage, is_finished in zip(self.recipe.stages, finished, strict=True):
            for key, config in [] if is_finished else stage.placed_datasets:
                for path in config.paths:
                    check_path_known(path, f"stages.{stage.name}.{key}.path")
        return finished

    def skip(self, index: int) -> None:
        """Log that a stage is finished, and remove checkpoints of a run that was interrupted after saving."""
        logger.info("%s  already finished, skipped", self.recipe.stages[index].name)
        if self.process.is_main_process:
            shutil.rmtree(self.work_folders[index], ignore_errors=True)

    def open_saved(self) -> Encoder:
        """Open the encoder after the last stage, as it was trained."""
        return Encoder.from_pretrained(
            self.folders[-1],
            device=self.process.device,
            merge_adapter=False,
            trust_remote_code=self.recipe.encoder.trust_remote_code,
        )

    def open_start(self, index: int) -> Encoder:
        """Open the encoder that a stage starts from, prepared for the stage by `build.prepare_encoder` next."""
        source = self.folders[index - 1] if index else self.start
        encoder = build.starting_encoder(self.recipe, index, source, device=self.process.device)
        if source is not None:
            self.start_facts = (encoder.card_facts or CardFacts()).get("before") if index else encoder.card_facts
        return encoder

    def begin(self, index: int) -> dict[str, Any]:
        """Return a stage's settings and inputs, which its folder will hold; create or keep its work folder."""
        if not self.resume:
            shutil.rmtree(self.work_folders[index], ignore_errors=True)
        settings = self.settings.of_stage(index)
        self.settings.begin(self.work_folders[index], index, settings, processes=self.process.num_processes)
        return settings

    def read_rows(self, index: int, encoder: Encoder) -> StageRows:
        """Read the data sets of a stage, tokenised by its encoder; what is read is logged and recorded."""
        stage, objective, args = self.recipe.stages[index], self.objectives[index], self.arguments[index]
        with torch.autocast(self.process.device.type, torch.bfloat16, enabled=args.bf16):  # as in training steps
            parts = build.datasets(
                stage,
                objective,
                encoder,
                keep=self.work_folders[index] / COMPUTED,
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
        if self.centers(index):
            chosen = rows.select(np.linspace(0, len(rows) - 1, min(len(rows), MOST_CENTERED)).astype(int))
            self.center_texts = grouped(chosen)
            count = sum(map(len, self.center_texts.values()))
            check_components(self.components, count, encoder.pooled_dimensions)
        order = build.order(stage, [len(part) for part in parts], objective, seed=self.recipe.seed)
        if args.dataloader_drop_last:
            build.check_fills_batch(stage, len(rows), args.per_device_train_batch_size * self.process.num_processes)
        trained = sum(p.numel() for p in encoder.parameters() if p.requires_grad)
        share = trained / sum(p.numel() for p in encoder.parameters())
        logger.info("%s  %d rows, %s trained weights (%s)", stage.name, len(rows), f"{trained:,}", f"{share:.1%}")
        if args.bf16:
            logger.info("%s  trained weights are float32, matrix products bfloat16 (training.bf16)", stage.name)
            if not supports_natively(torch.bfloat16, self.process.device):
                logger.warning("%s  training.bf16: %s; leave it out, or use a GPU", stage.name, EMULATED)
        self.results.add_data(stage, parts, per_step=samples_per_step(args))
        return StageRows(rows, order, held_out)

    def fit(self, index: int, trainer: StageTrainer) -> int:
        """Train a stage, from its newest complete checkpoint if the run is resumed; record and check the result.

        Returns:
            The number of optimiser steps of the encoder's weights.
        """
        stage, args, began = self.recipe.stages[index], self.arguments[index], time.perf_counter()
        checkpoint = None
        if self.resume:
            needed = checkpoints.files_needed(args)
            checkpoint = checkpoints.newest(self.work_folders[index], needed, args.keep or ())
        steps = trainer.fit(checkpoint)
        self.results.add_training(stage.name, trainer.state, time.perf_counter() - began)
        trained = trainer.step.trainable().values()
        if not self.sharded and not all(bool(weight.isfinite().all()) for weight in trained):
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
        return steps

    def reopen(self, index: int, tensors: dict[str, Tensor]) -> Encoder | None:
        """Open a stage's encoder again in the first process, with the tensors that were trained in shards."""
        if not self.process.is_main_process:
            return None
        encoder = self.open_start(index)
        build.prepare_encoder(encoder, self.recipe, index, self.objectives[index])
        checkpoints.load_trained(TrainStep(encoder, self.objectives[index]), tensors)
        return encoder

    def finish(self, index: int, encoder: Encoder, steps: int) -> None:
        """Prepare an encoder, trained for `steps` in this stage, for evaluation and saving."""
        encoder.steps += steps
        encoder.compute_dtype = self.compute_dtypes[self.recipe.stages[index].name]
        encoder.backbone.zero_grad(set_to_none=True)
        encoder.eval()

    def centers(self, index: int) -> bool:
        """Return whether the encoder is centred after a stage (`pooling.center`): after the last one."""
        return bool(self.recipe.encoder.pooling.center) and index + 1 == len(self.recipe.stages)

    @property
    def components(self) -> int:
        """Number of components that are subtracted with the mean."""
        return self.recipe.encoder.pooling.components or 0

    def center(self, index: int, encoder: Encoder | None) -> Encoder | None:
        """Return the encoder of a stage, centred where the recipe says so; the main process computes the mean.

        Args:
            index: index of the stage.
            encoder: its encoder; None in a process that held only shards of its weights, which is not the main one.
        """
        if not self.centers(index):
            return encoder
        fitted = from_main_process(lambda: fit_encoder(cast(Encoder, encoder), self.center_texts, self.components))
        return None if encoder is None else with_fit(encoder, fitted)

    def save(self, index: int, encoder: Encoder, settings: dict[str, Any], steps: int) -> None:
        """Save the encoder of a stage, which was trained for `steps` in it, and those of `training.keep`."""
        self.results.write()  # before the stage's folder, which marks it as finished
        encoder.card_facts = self.results.card_facts(index, self.start_facts)
        for earlier in self.folders[index].parent.glob(f"{self.recipe.stages[index].name}{checkpoints.STEP_SUFFIX}*"):
            shutil.rmtree(earlier)  # of weights that were trained before these
        if self.arguments[index].keep:
            self._save_earlier_steps(index, encoder, steps)
        encoder.save_pretrained(
            self.folders[index],
            overwrite=self.resume,
            verify=self.verify,
            recipe=self.recipe.public().to_yaml(),
            extra={STAGE: json.dumps(settings, indent=2, sort_keys=True)},
        )
        shutil.rmtree(self.work_folders[index], ignore_errors=True)

    def wait_until_saved(self, index: int) -> None:
        """Wait until the first process has saved a stage, and log its folder."""
        self.process.wait_for_everyone()
        saved = "saved" if self.verify == "off" else "saved and verified"
        logger.info("%s  %s: %s", self.recipe.stages[index].name, saved, self.folders[index])

    def _save_earlier_steps(self, index: int, encoder: Encoder, steps: int) -> None:
        """Save the encoder after the steps of `training.keep`, without scores, which are those of another step."""
        name, step = self.recipe.stages[index].name, TrainStep(encoder, self.objectives[index])
        tensors = {key: tensor.clone() for key, tensor in checkpoints.trained_tensors(step).items()}
        record, total = encoder.card_facts or CardFacts(), encoder.steps
        last = self.results.values["samples"][name]["steps"]  # the encoder's may be an earlier one, the best
        for number in sorted(set(self.arguments[index].keep or ())):
            if number > last:
                logger.warning("%s  step %d is not kept: the stage stopped before it", name, number)
                continue
            checkpoints.read_trained(step, checkpoints.step_file(self.work_folders[index], number))
            encoder.steps = total - steps + number
            encoder.card_facts = without_scores(record)
            folder = self.folders[index].with_name(f"{name}{checkpoints.STEP_SUFFIX}{number}")
            to_save = encoder
            if encoder.center is not None:
                to_save = centered(encoder, self.center_texts, self.components)
            to_save.save_pretrained(
                folder, overwrite=self.resume, verify=self.verify, recipe=self.recipe.public().to_yaml()
            )
        checkpoints.load_trained(step, tensors)
        encoder.card_facts, encoder.steps = record, total
