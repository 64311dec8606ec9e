"""Three lines before a stage's first step: what it takes on this machine."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from datasets import Dataset

from embrew.data.mixing import MixedOrder
from embrew.distributed import world_size
from embrew.modeling.encoder import Encoder
from embrew.objectives import Objective
from embrew.planning.devices import Device, device_here
from embrew.planning.memory import Static
from embrew.planning.run import StageRun
from embrew.planning.stage import UTILIZATION, Stage, StagePlan
from embrew.planning.taken import taken_by_process
from embrew.recipe import Recipe

logger = logging.getLogger(__name__)


class Announcer:
    """Logs the plan of each stage of a recipe, as `training.train` calls it; an error is logged, not raised.

    Args:
        recipe: that is trained.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __call__(
        self,
        index: int,
        encoder: Encoder,
        objective: Objective,
        rows: Dataset,
        order: MixedOrder | None,
        recompute: bool,
        sharded: bool,
    ) -> None:
        """Log three lines about stage `index`; or why there are none."""
        name = self.recipe.stages[index].name
        try:
            processes = world_size()
            place = device_here(encoder.device).shared(processes)
            run = StageRun.of(self.recipe, index, count=len(rows), processes=processes, kind=place.kind, order=order)
            taken = None
            if place.kind == "cpu":  # the weights are there already
                taken = taken_by_process() - Static.of(encoder, objective).weights
            run = replace(run, recompute=recompute)
            stage = Stage(encoder, objective, rows, order, run, place, taken=taken, sharded=sharded)
            lines = _lines(stage.plan(utilization=UTILIZATION, measured=True, search=False), place)
        except Exception as error:  # a plan helps, and must not keep anyone from training
            logger.warning("%s  no plan of its memory and time (%s: %s)", name, type(error).__name__, error)
            logger.debug("no plan of %s", name, exc_info=True)
            return
        for line in lines:
            logger.info("%s  %s", name, line)


def _lines(plan: StagePlan, place: Device) -> list[str]:
    memory, run = plan.memory, plan.run
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimiser": memory.optimizer,
        "activations": memory.activations,
    }
    verdict = "fits" if plan.fits else "DOES NOT FIT: see embrew plan"
    hours = ""
    if plan.hours is not None and not math.isnan(plan.hours):
        hours = f", about {_duration(plan.hours * 3600)} at {UTILIZATION:.0%} of the peak FLOP/s"
    return [
        f"plan: {'; '.join(f'{name} {size / 1e9:.2f} GB' for name, size in parts.items())}",
        f"plan: peak about {memory.peak / 1e9:.2f} GB of {plan.free / 1e9:.1f} GB on {place.name}: {verdict}",
        f"plan: {run.steps:,} steps of about {plan.tokens:,} tokens{hours}",
    ]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
