"""What of a stage's settings decides how much it computes at a time, and how often."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from embrew import build
from embrew.data.mixing import MixedOrder
from embrew.recipe import Recipe
from embrew.training.gradcache import Chunks

AUTOCAST = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
MOMENTS = {
    "adafactor": 0.02, "sgd": 0.0, "adagrad": 4.0, "rmsprop": 4.0, "rmsprop_bnb": 4.0, "adamw_anyprecision": 4.0,
    "ademamix": 12.0, "paged_ademamix_32bit": 12.0, "ademamix_8bit": 3.06, "paged_ademamix_8bit": 3.06,
    "lion_32bit": 4.0, "paged_lion_32bit": 4.0, "lion_8bit": 1.02, "paged_lion_8bit": 1.02, "adamw_torch_4bit": 1.06,
    "adamw_torch_8bit": 2.03, "adamw_8bit": 2.03, "adamw_bnb_8bit": 2.03, "paged_adamw_8bit": 2.03,
    "rmsprop_bnb_8bit": 1.02,
}  # fmt: skip
"""Bytes of an optimiser's state per trained weight; 8 (two moments in float32) where it is not named here."""


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """A stage's batch, steps and arithmetic.

    Attributes:
        name: of the stage.
        method: its objective.
        rows: of a micro-batch, per device.
        chunks: of gradient caching; None: none.
        accumulation: micro-batches of an optimiser step.
        processes: number of devices.
        steps: optimiser steps; None: unknown.
        arithmetic: dtype of matrix products.
        recompute: activation checkpointing; `auto`: where activations do not fit, which `Stage` decides.
        moments: bytes of the optimiser's state per trained weight.
        seed: of the recipe.
    """

    name: str
    method: str
    rows: int
    chunks: Chunks | None
    accumulation: int
    processes: int
    steps: int | None
    arithmetic: str
    recompute: Any
    moments: float
    seed: int

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of autocast; None: off."""
        return AUTOCAST[self.arithmetic]

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        index: int,
        *,
        count: int | None,
        processes: int,
        kind: str,
        order: MixedOrder | None = None,
    ) -> StageRun:
        """Return the run of stage `index`.

        Args:
            recipe: with the stage.
            index: of the stage.
            count: of its rows; None: unknown.
            processes: number of devices.
            kind: type of the devices.
            order: of the rows of several data sets, of which an epoch may leave some out.

        Raises:
            ValueError: the number of devices does not divide the global batch, or the rows do not fill it.
        """
        stage = recipe.stages[index]
        training, batch = stage.training, stage.batch
        rows, chunks = int(training.get("per_device_train_batch_size", 8)), None
        if batch is not None:
            if batch.size % processes:
                raise ValueError(
                    f"stage {stage.name}: batch.size={batch.size} is not divisible by {processes} devices; give "
                    "--gpus a divisor of it"
                )
            rows = batch.size // processes
            if batch.mini_batch_size or batch.mini_batch_num_tokens:
                chunks = Chunks(rows=batch.mini_batch_size, tokens=batch.mini_batch_num_tokens)
        accumulation = int(training.get("gradient_accumulation_steps", 1))
        steps = int(training.get("max_steps", -1))
        drops = build.drops_last(stage, build.objective(stage.objective))
        if drops and count is not None:
            build.check_fills_batch(stage, count, rows * processes)
        steps_known = steps if steps > 0 else None
        if steps <= 0 and count is not None:  # as transformers' Trainer counts them
            drawn = count if order is None else len(order)
            batches = drawn // (rows * processes) if drops else math.ceil(drawn / (rows * processes))
            an_epoch = max(1, math.ceil(batches / accumulation))
            steps_known = math.ceil(float(training.get("num_train_epochs", 3.0)) * an_epoch)
        return cls(
            name=stage.name,
            method=str(stage.objective["type"]),
            rows=rows,
            chunks=chunks,
            accumulation=accumulation,
            processes=processes,
            steps=steps_known,
            arithmetic=build.arithmetic(recipe, stage, torch.device(kind)),
            recompute=training.get("activation_checkpointing") or training.get("gradient_checkpointing") or False,
            moments=MOMENTS.get(str(training.get("optim", "adamw_torch")), 8.0),
            seed=recipe.seed,
        )
