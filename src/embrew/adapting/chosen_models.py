"""The models of a race where none is given: those of `models.yaml` that fit this machine and the minutes."""

from __future__ import annotations

import logging
from statistics import mean
from typing import Any

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError
from torch import device

from embrew.adapting.defaults import Defaults, shipped
from embrew.adapting.prepare import Prepared
from embrew.free_memory import total_and_free
from embrew.planning.devices import GIB, device_here
from embrew.planning.stage import UTILIZATION
from embrew.storage.base_model import is_cached, local_model, pick_device

logger = logging.getLogger(__name__)
CHARACTERS = 4.0  # of a token, in English
OF_FULL, OF_LORA = 16, 4  # bytes of a parameter: with gradients and Adam's moments in float32, and frozen
BESIDE = 3 * GIB  # a process and its activations


def models_that_fit(data: Prepared, defaults: Defaults) -> list[str]:
    """Return the models to race, and log which were left out, and why.

    Args:
        data: whose texts say how long a step takes.
        defaults: minutes, and which models are trained whole.

    Raises:
        ValueError: none fits.
    """
    listed, place, offline = shipped("models.yaml"), pick_device(None), False
    chosen, left_out = [], []
    for one in listed["models"]:
        why = _too_large(one, data, defaults, listed["least_steps"], place)
        if why is None:
            why = _not_here(one["model"], offline=offline)
            offline = offline or why == OFFLINE
        if why is None:
            chosen.append(one["model"])
        else:
            left_out.append(f"{one['model']} ({why})")
    said = "; ".join(left_out)
    if not chosen:
        raise ValueError(f"no model was given, and none of embrew's list is raced: {said}. Give one or several")
    logger.info("no model was given; raced are %s", ", ".join(chosen))
    if left_out:
        logger.info("left out: %s", said)
    return chosen


OFFLINE = "not on this machine, and the Hub is out of reach"


def _too_large(one: dict[str, Any], data: Prepared, defaults: Defaults, least_steps: int, place: device) -> str | None:
    """Return what of this machine a model exceeds."""
    free = total_and_free()[1] if place.type == "cpu" else device_here(place).memory
    whole = one["parameters"] < defaults.ready.full_below and not one.get("is_bare")
    needed = one["parameters"] * (OF_FULL if whole else OF_LORA) + BESIDE
    if free is not None and needed > free:
        return f"about {needed / GIB:.1f} GiB of {free / GIB:.1f} that are free"
    tokens = defaults.batch["size"] * sum(mean(map(len, texts)) for texts in data.texts().values()) / CHARACTERS
    operations = (6 if whole else 4) * one["layers"] * tokens
    steps = 60 * defaults.minutes * UTILIZATION * device_here(place).speed("float32") / operations
    return f"about {steps:.0f} steps in {defaults.minutes:g} minutes" if steps < least_steps else None  # NaN: unknown


def _not_here(model: str, *, offline: bool) -> str | None:
    """Return why a model cannot be opened, without a download.

    Args:
        model: its name.
        offline: the Hub was out of reach for another one.
    """
    try:
        if is_cached(model) or local_model(model) is not None:
            return None
    except FileNotFoundError:
        return OFFLINE
    if offline:
        return OFFLINE
    try:
        HfApi().auth_check(model)
    except GatedRepoError:
        return "it is gated: accept its licence on the Hub and log in"
    except (HfHubHTTPError, httpx2.HTTPError, OSError):
        return OFFLINE
    return None
