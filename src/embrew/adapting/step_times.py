"""The time of an optimiser step on this machine, and the steps that fit into the minutes of training."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from datasets import concatenate_datasets

from embrew.adapting.defaults import Defaults, ModelDefaults
from embrew.adapting.preparation.prepare import Prepared
from embrew.adapting.recipes import row_count
from embrew.recipe import DataConfig, Recipe, build
from embrew.recipe.build.encoders import compute_dtype
from embrew.recipe.stage import StageConfig
from embrew.storage.base_model import pick_device
from embrew.training.step import MiniBatchSize, TrainStep

T = TypeVar("T")
LONG_ENOUGH = 3.0  # seconds of a measured step from which the time is taken to grow with the rows


def steps_in_time(
    recipe: Recipe,
    choices: ModelDefaults,
    data: Prepared,
    defaults: Defaults,
    dev_seconds: float,
    step_seconds: Sequence[float],
) -> tuple[list[int], int]:
    """Return the steps of each stage and the number of evaluations that fit into the minutes.

    Args:
        recipe: with all settings but steps.
        choices: shares and epochs of its stages.
        data: the numbers of rows.
        defaults: minutes of training, with all evaluations on dev; and evaluations that are wanted within the last
            stage: fewer, if they would take more than half of the time.
        dev_seconds: time of one evaluation.
        step_seconds: time of a step of each stage.
    """
    minutes, others = defaults.minutes, len(recipe.stages)  # before training, and after each stage but the last
    fitting = max(1, math.floor(30 * minutes / max(dev_seconds, 1e-6)) - others)
    evaluations = min(defaults.evaluations, fitting)
    budget = max(60 * minutes - (others + evaluations) * dev_seconds, 30 * minutes)
    steps = []
    for stage, default, seconds in zip(recipe.stages, choices.stages, step_seconds, strict=True):
        limit = math.ceil(default.epochs * row_count(default, data) / batch_size(stage))
        steps.append(max(1, min(math.floor(default.share * budget / seconds), limit)))
    return steps, evaluations


def batch_size(stage: StageConfig) -> int:
    """Return the rows of an optimiser step, in one process."""
    rows: int = stage.batch.size if stage.batch else stage.training.get("per_device_train_batch_size", 8)
    return rows * int(stage.training.get("gradient_accumulation_steps", 1))


def seconds_per_step(recipe: Recipe, source: Path | None = None) -> Iterator[float]:
    """Yield the measured seconds of an optimiser step of each stage on this machine.

    Forward and backward passes over more and more rows, short and long ones, are timed until they take `LONG_ENOUGH`
    or are a whole batch.
    """
    encoder = build.starting_encoder(recipe, 0, source, device=pick_device(None))
    for index, stage in enumerate(recipe.stages):
        objective = build.objective(stage.objective)
        build.prepare_encoder(encoder, recipe, index, objective)
        size, parts = batch_size(stage), []
        for config in stage.datasets:
            few: DataConfig = config.model_copy(update={"shuffle_seed": recipe.seed})
            part = build.rows(few, objective, max_rows=size)
            parts.append(objective.precompute(objective.prepare(part, encoder), encoder, None))
        rows = sorted(concatenate_datasets(parts).to_list(), key=lambda row: len(str(row)))
        step = TrainStep(encoder, objective, MiniBatchSize.from_config(stage.batch))
        in_bfloat16 = compute_dtype(recipe, stage) == "bfloat16"
        count, seconds = 2, 0.0
        _forward_backward(step, spread(rows, count), in_bfloat16)  # the first one allocates
        while True:
            seconds = _forward_backward(step, spread(rows, count), in_bfloat16)
            if seconds >= LONG_ENOUGH or count >= min(size, len(rows)):
                break
            count = min(2 * count, size, len(rows))
        yield seconds * size / count


def spread(rows: Sequence[T], count: int) -> list[T]:
    """Return `count` of the rows, at equal distances, or all of fewer."""
    count = min(count, len(rows))
    return [rows[(2 * number + 1) * len(rows) // (2 * count)] for number in range(count)]


def _forward_backward(step: TrainStep, rows: Sequence[dict[str, Any]], in_bfloat16: bool) -> float:
    """Return the seconds of a forward and a backward pass over rows."""
    began = time.perf_counter()
    batch = step.objective.collate(rows, step.encoder, seed=0)
    with torch.autocast(step.encoder.device.type, torch.bfloat16, enabled=in_bfloat16):
        loss = step(**batch, progress=0.0)["loss"]
    loss.backward()
    step.zero_grad(set_to_none=True)
    if step.encoder.device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - began
