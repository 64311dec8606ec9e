"""In what a recipe's weights are opened, and in what they are computed with while they are trained."""

from __future__ import annotations

from typing import Any

from embrew.modeling.loading import pick_device, pick_dtype
from embrew.recipe import Recipe


def opening_dtype(recipe: Recipe, device: Any = None) -> str:
    """The dtype to open a recipe's model in: float32 where every weight is trained, else what the recipe says.

    Raises:
        ValueError: the recipe asks for a dtype that the device only emulates.
    """
    pick_dtype(recipe.encoder.dtype, pick_device(device))
    return "float32" if _trains_all(recipe) else recipe.encoder.dtype


def autocasts(recipe: Recipe, device: Any = None) -> bool:
    """Whether float32 weights are computed with in bfloat16, since every weight is trained and `dtype` is bfloat16."""
    return _trains_all(recipe) and str(pick_dtype(recipe.encoder.dtype, pick_device(device))) == "torch.bfloat16"


def _trains_all(recipe: Recipe) -> bool:
    return bool(recipe.stages) and recipe.encoder.lora is None
