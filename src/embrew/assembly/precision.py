"""The dtype of a recipe's weights, and of the arithmetic of its training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import torch

from embrew.recipe import Recipe, StageConfig
from embrew.storage.base_model import computes, pick_device, pick_dtype
from embrew.storage.opening import read_settings

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
    """Return whether training uses bfloat16 autocast where a stage does not choose.

    It does so if `dtype` is bfloat16. With `auto`, it does so on a GPU; and on a CPU with AVX512-BF16, AMX or ARM's
    BF16 if a LoRA is trained: full fine-tuning is not faster there. Trained weights, losses, norms and the optimiser
    stay in float32.
    """
    if not recipe.stages:
        return False
    place = pick_device(device)
    if recipe.encoder.dtype == "auto":
        return computes(torch.bfloat16, place) and not (place.type == "cpu" and _trains_all(recipe))
    return pick_dtype(recipe.encoder.dtype, place) == torch.bfloat16


Arithmetic = Literal["float32", "bfloat16", "float16"]


def arithmetic(recipe: Recipe, stage: StageConfig, device: Any = None) -> Arithmetic:
    """Return the dtype of a stage's matrix products: of autocast, or float32."""
    training = stage.training
    if training.get("fp16"):
        return "float16"
    chosen = training.get("bf16") if {"bf16", "fp16"} & training.keys() else autocasts(recipe, device)
    return "bfloat16" if chosen else "float32"


def _trains_all(recipe: Recipe) -> bool:
    return bool(recipe.stages) and recipe.encoder.lora is None
