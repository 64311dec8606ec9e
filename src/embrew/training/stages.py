"""Train the stages of a recipe one after another. `train_stage` does all of one: encoder, data, training, saving."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from accelerate import PartialState
from datasets import Dataset

from embrew.data.mixing import MixedOrder
from embrew.distributed import from_main_process, locked_by_main_process
from embrew.encoder import Encoder
from embrew.methods import Objective
from embrew.recipe import Recipe, build
from embrew.training import checkpoints, sharding
from embrew.training.run import Run
from embrew.training.sharding import sharding_requested
from embrew.training.stage_evaluation import Evaluate
from embrew.training.step import MiniBatchSize, TrainStep
from embrew.training.trainer import StageTrainer

logger = logging.getLogger(__name__)
TRAINING = "training into"  # shown to a process that finds the output folder locked
Announce = Callable[[int, Encoder, Objective, Dataset, MixedOrder | None, bool], None]
"""Called with a stage's index, encoder, objective, rows, their order, and whether its weights are sharded."""


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
    `evaluation.at`, it is scored after given numbers of samples, and a stage ends with its last weights.

    Args:
        recipe: what to train.
        output_dir: output folder; must not hold a run, unless `resume`.
        resume: skip stages that are finished with the same settings, and resume from the newest complete checkpoint.
        evaluate: returns an encoder's scores; `dev`, `guard` and the `guard/NAME` that got worse are logged. If it is
            an `EvaluateSets`, as `embrew.evaluation.dev` makes, training rows that contain a text of its evaluation
            sets are counted.
        verify: how a saved stage is verified: `fast`, `full`, `off`.
        start: folder of a trained encoder to start from, instead of the recipe's language model.
        command: words of the command line that starts the same run; `embrew runs` shows them.
        announce: called in the main process before the first step of each stage; logs its expected time and memory.

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
        with locked_by_main_process(Path(output_dir), TRAINING):
            run = Run(
                recipe,
                Path(output_dir),
                resume=resume,
                evaluate=evaluate,
                verify=verify,
                start=start,
                command=command,
                sharded=sharded,
            )
            finished = from_main_process(run.finished_stages)
            run.results.write()
            encoder: Encoder | None = None
            for index in range(len(recipe.stages)):
                if finished[index]:
                    run.skip(index)
                    encoder = None
                else:
                    encoder = None  # freed before the next stage opens it from its folder
                    gc.collect()  # an evaluation refers to its encoder, and to itself
                    encoder = train_stage(run, index, announce)
            return run.open_saved() if encoder is None else encoder


def train_stage(run: Run, index: int, announce: Announce | None = None) -> Encoder | None:
    """Train, score and save a stage; return the encoder, or None in a process that held only shards of its weights."""
    stage, objective, args = run.recipe.stages[index], run.objectives[index], run.arguments[index]
    # Encoder: the language model of the recipe, or the encoder of the previous stage.
    encoder = run.open_start(index)
    if index == 0:
        run.results.score("base", encoder)
    build.prepare_encoder(encoder, run.recipe, index, objective)
    # Data.
    settings = from_main_process(lambda: run.begin(index))
    data = run.read_rows(index, encoder)
    if announce is not None and run.process.is_main_process:
        announce(index, encoder, objective, data.rows, data.order, run.sharded)
    # For compression only: which share of what the full context saves in loss the memory tokens save.
    gap = run.results.gap_closed(index, objective, data.held_out, encoder)
    # Training step and trainer. The loss: `TrainStep.forward` calls the objective with the encoder and a batch.
    if run.sharded:
        logger.info("%s  weights sharded over %d processes (FSDP2)", stage.name, run.process.num_processes)
        sharding.shard(encoder, run.process.device, compute=torch.bfloat16 if args.bf16 else None)
    step = TrainStep(encoder, objective, MiniBatchSize.from_config(stage.batch))
    evaluation = run.results.stage_evaluation(index, encoder, gap)
    trainer = StageTrainer(step, args, data.rows, stage.name, data.order, evaluation)
    steps = run.fit(index, trainer)
    curve = trainer.curve
    # Scores, and the saved encoder.
    trained: Encoder | None = encoder
    if run.sharded:
        tensors = checkpoints.trained_tensors(step)
        del encoder, step, trainer, trained  # the shards are freed before the whole weights are opened
        trained = run.reopen(index, tensors)
    if trained is not None:
        run.finish(index, trained, steps)
    trained = run.center(index, trained)
    if trained is not None:
        run.results.score_trained(stage.name, trained, evaluation, curve, gap, steps)
        if evaluation is not None and trained.center is not None:
            run.results.score(stage.name, trained)  # those within the stage are of uncentred vectors
        if run.process.is_main_process:
            run.save(index, trained, settings, steps)
    run.wait_until_saved(index)
    return trained
