"""The estimates of `embrew plan` beside what was measured."""

from __future__ import annotations

import traceback
from typing import Any

import gpu

from embrew.planning import plan_recipe
from embrew.recipe import Recipe


def compare(recipe: Recipe, measured_gb: float) -> dict[str, Any]:
    """Return the planned peak of a recipe's only stage, less what CUDA itself takes, and its ratio to a measured one.

    An error of the plan is a figure, so that no measurement is lost.
    """
    try:
        memory = plan_recipe(recipe, gpu="h100" if gpu.DEVICE == "cuda" else "cpu").stages[0].memory
    except Exception as error:
        traceback.print_exc()
        return {"plan_error": f"{type(error).__name__}: {error}"}
    planned = (memory.peak - memory.taken) / 2**30
    return {"planned_gb": planned, "planned ÷ measured": planned / measured_gb}
