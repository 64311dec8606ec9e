"""The models of a race where none is given: those of `models.yaml` that fit this machine and the minutes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from statistics import mean

import httpx2
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

from embrew.adapting.defaults import Defaults, shipped
from embrew.adapting.preparation.prepare import Prepared
from embrew.machine import total_and_free
from embrew.planning.devices import GIB, device_here
from embrew.planning.stage import UTILIZATION
from embrew.storage.base_model import is_cached, local_model, pick_device

logger = logging.getLogger(__name__)
CHARACTERS = 4.0  # of a token, in English
BYTES_FULL, BYTES_LORA = 16, 4  # bytes of a parameter: with gradients and Adam's moments in float32, and frozen
BYTES_PROCESS = 3 * GIB  # a process and its activations


@dataclass(frozen=True, kw_only=True)
class ListedModel:
    """A model of `models.yaml`, which describes the keys."""

    model: str
    parameters: float
    layers: float
    is_bare: bool = False


def models_that_fit(data: Prepared, defaults: Defaults) -> list[str]:
    """Return the models to race, and log which were left out, and why.

    Args:
        data: whose texts say how long a step takes.
        defaults: minutes, and which models are trained whole.

    Raises:
        ValueError: none fits.
    """
    listed, device, offline = shipped("models.yaml"), pick_device(None), False
    chosen, left_out = [], []
    for values in listed["models"]:
        model = ListedModel(**values)
        reason = _too_large(model, data, defaults, listed["least_steps"], device)
        if reason is None:
            reason = _unavailable(model.model, offline=offline)
            offline = offline or reason == OFFLINE
        if reason is None:
            chosen.append(model.model)
        else:
            left_out.append(f"{model.model} ({reason})")
    reasons = "; ".join(left_out)
    if not chosen:
        raise ValueError(f"no model was given, and none of embrew's list is raced: {reasons}. Give one or several")
    logger.info("no model was given; raced are %s", ", ".join(chosen))
    if left_out:
        logger.info("left out: %s", reasons)
    return chosen


OFFLINE = "not on this machine, and the Hub is out of reach"


def _too_large(
    model: ListedModel, data: Prepared, defaults: Defaults, least_steps: int, device: torch.device
) -> str | None:
    """Return which limit of this machine a model exceeds; None: it fits."""
    free = total_and_free()[1] if device.type == "cpu" else device_here(device).memory
    trains_all = model.parameters < defaults.ready.full_below and not model.is_bare
    needed = model.parameters * (BYTES_FULL if trains_all else BYTES_LORA) + BYTES_PROCESS
    if free is not None and needed > free:
        return f"about {needed / GIB:.1f} GiB of {free / GIB:.1f} that are free"
    tokens = defaults.batch["size"] * sum(mean(map(len, texts)) for texts in data.texts().values()) / CHARACTERS
    operations = (6 if trains_all else 4) * model.layers * tokens
    steps = 60 * defaults.minutes * UTILIZATION * device_here(device).speed("float32") / operations
    return f"about {steps:.0f} steps in {defaults.minutes:g} minutes" if steps < least_steps else None  # NaN: unknown


def _unavailable(model: str, *, offline: bool) -> str | None:
    """Return why a model cannot be opened, without a download.

    Args:
        model: its name.
        offline: whether the Hub was out of reach for another model.
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
