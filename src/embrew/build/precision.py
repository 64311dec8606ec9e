"""In what a recipe's weights are opened, and in what they are computed with while they are trained."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from embrew.modeling.storage.loading import pick_device, pick_dtype
from embrew.modeling.storage.opening import read_settings
from embrew.recipe import Recipe

logger = logging.getLogger(__name__)


def opening_dtype(recipe: Recipe, device: Any = None, *, source: Path | None = None) -> str:
    """The dtype to open a recipe's model in: float32 where every weight is trained, else what the recipe says.

    Weights that an earlier stage trained in float32 stay float32 under a LoRA too: rounded to bfloat16, most of them
    would be what they were before that stage.

    Args:
        recipe: says which weights are trained, and `encoder.dtype`.
        device: where they are computed with.
        source: the folder of a saved encoder, where that is opened.

    Raises:
        ValueError: the recipe asks for a dtype that the device only emulates.
    """
    asked = pick_dtype(recipe.encoder.dtype, pick_device(device))
    if _trains_all(recipe):
        return "float32"
    settings = {} if source is None else read_settings(source)
    if settings.get("full_weights") and settings["dtype"] == "float32" and asked.itemsize < 4:
        logger.info("%s holds weights trained in float32, which stay so under the LoRA", source)
        return "float32"
    return recipe.encoder.dtype


def autocasts(recipe: Recipe, device: Any = None) -> bool:
    """Whether float32 weights are computed with in bfloat16, since every weight is trained and `dtype` is bfloat16."""
    return _trains_all(recipe) and str(pick_dtype(recipe.encoder.dtype, pick_device(device))) == "torch.bfloat16"


def _trains_all(recipe: Recipe) -> bool:
    return bool(recipe.stages) and recipe.encoder.lora is None
