"""The dtype of a recipe's weights, and whether training uses autocast."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from embrew.modeling.storage.loading import pick_device, pick_dtype
from embrew.modeling.storage.opening import read_settings
from embrew.recipe import Recipe

logger = logging.getLogger(__name__)


def opening_dtype(recipe: Recipe, device: Any = None, *, source: Path | None = None) -> str:
    """Return the dtype to open a recipe's model in: float32 if every weight is trained, else the recipe's.

    Weights that an earlier stage trained in float32 stay float32 under a LoRA too: rounding to bfloat16 would revert
    most of their changes.

    Args:
        recipe: says which weights are trained, and `encoder.dtype`.
        device: device of the model.
        source: folder of the saved encoder, if one is opened.

    Raises:
        ValueError: the recipe's dtype is only emulated by the device.
    """
    asked = pick_dtype(recipe.encoder.dtype, pick_device(device))
    if _trains_all(recipe):
        return "float32"
    settings = {} if source is None else read_settings(source)
    if settings.get("full_weights") and settings["dtype"] == "float32" and asked.itemsize < 4:
        logger.info("%s holds weights trained in float32; they stay float32 under the LoRA", source)
        return "float32"
    return recipe.encoder.dtype


def autocasts(recipe: Recipe, device: Any = None) -> bool:
    """Return whether training uses bfloat16 autocast: every weight is trained, and `dtype` is bfloat16."""
    return _trains_all(recipe) and str(pick_dtype(recipe.encoder.dtype, pick_device(device))) == "torch.bfloat16"


def _trains_all(recipe: Recipe) -> bool:
    return bool(recipe.stages) and recipe.encoder.lora is None
