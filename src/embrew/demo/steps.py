"""How many of a recipe's steps the demonstration trains: all of them, or as many as five minutes allow."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from embrew.demo.estimate import Estimate, costs
from embrew.files.writing import atomic_path

if TYPE_CHECKING:
    from embrew.recipe import Recipe

FEWEST = 0.25
"""The smallest share of the steps: nDCG@10 is about 0.3 after it, 0.4 after all steps, 0.05 untrained."""
MINUTES = 5.0
ABOUT = 6.0  # minutes in which all steps are trained nevertheless: the estimate is not more exact
ALL = 'make demo ARGS="--full --fresh"'


def chosen_share(recipe: Recipe, output: Path, step: float, share: float | None = None, *, fit: bool = True) -> float:
    """Return the share of the recipe's steps to train; an earlier run's in the folder stands.

    Args:
        recipe: with all its steps.
        output: folder of the demonstration, where the share is written.
        step: seconds of one step of `estimate.measure`.
        share: what was asked for; None: the choice is left to this function.
        fit: choose what five minutes allow; otherwise all steps.

    Raises:
        ValueError: the folder was begun with another share, or the smallest share does not fit.
    """
    file = output / "steps.json"
    earlier = None
    if file.is_file():
        earlier = float(json.loads(file.read_text())["share"])
    if earlier is not None and share not in (None, earlier):
        raise ValueError(
            f"{output} was begun with {earlier:.0%} of the steps, and {share:.0%} are asked for; leave --quick and "
            "--full out to resume it, or add --fresh to remove it and begin anew"
        )
    chosen = earlier or share or (_fitting(recipe, output, step) if fit else 1.0)
    output.mkdir(parents=True, exist_ok=True)
    with atomic_path(file) as path:
        path.write_text(json.dumps({"share": chosen}) + "\n")
    return chosen


def fewer_steps(recipe: Recipe, share: float) -> list[str]:
    """Return overrides by which each stage trains a share of its steps, at least one."""
    return [
        f"stages.{stage.name}.training.{key}={max(1, round(share * stage.training[key]))}"
        for stage in recipe.stages
        for key in ("max_steps", "warmup_steps")
        if share < 1 and stage.training.get(key, 0) >= 1
    ]


def steps_of(recipe: Recipe, whole: Recipe) -> dict[str, str]:
    """Return, for each stage, how many steps it trains and how many the recipe as shipped does: `15 of 60 steps`."""
    all_steps = {stage.name: stage.training.get("max_steps") for stage in whole.stages}
    return {
        stage.name: f"{stage.training.get('max_steps')} of {all_steps.get(stage.name)} steps" for stage in recipe.stages
    }


def _fitting(recipe: Recipe, output: Path, step: float) -> float:
    most = Estimate(step, costs(recipe, output))
    least = Estimate(step, costs(recipe, output, FEWEST))
    if most.minutes <= ABOUT:
        return 1.0
    if least.minutes > MINUTES:
        raise ValueError(
            f"five minutes are not enough on this machine at its current load: the demonstration takes {most}, and "
            f"{least} with a quarter of the training steps; give `make demo ARGS=--quick` (a quarter of the steps) or "
            "`make demo ARGS=--full` (all steps), or repeat the command when the machine is idle"
        )
    part = (MINUTES - least.minutes) / (most.minutes - least.minutes)
    return math.floor(100 * (FEWEST + (1 - FEWEST) * part)) / 100
