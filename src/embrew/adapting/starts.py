"""The models that a race starts from: their names, fingerprints and files, and how they are opened.

Where none is given, they are those of `models.yaml` that fit this machine and the minutes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Protocol, cast

import httpx2
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

from embrew.adapting.defaults import Defaults, Keys, shipped
from embrew.adapting.preparation.prepare import Prepared
from embrew.encoder import Encoder
from embrew.files import formats
from embrew.files.checksums import sealed
from embrew.files.names import path_inside
from embrew.files.reading import read_json
from embrew.files.writing import write_json
from embrew.identity import active_adapter
from embrew.machine import total_and_free
from embrew.opening import is_bare, is_recipe, open_model
from embrew.planning.devices import GIB, device_here
from embrew.planning.stage import UTILIZATION
from embrew.recipe.encoder import recipe_keys
from embrew.storage.base_model import is_cached, local_model, pick_device
from embrew.storage.foreign import check_is_model
from embrew.storage.loading import SETTINGS, final_stage
from embrew.text.texts import SIDES
from embrew.text_encoder import TextEncoder

logger = logging.getLogger(__name__)
STARTS = "starts.json"
REPORT = "adapted.json"
LORA = ("r", "lora_alpha", "lora_dropout", "target_modules", "rank_pattern", "alpha_pattern")  # keys to train on with
GENERAL = ("model", "encoder", "export", "contrast")  # names that many folders have
SAMPLE = 2**16  # bytes that are read at the beginning, in the middle and at the end of a file
REPAIR = "remove the file, and give all models again"
CHARACTERS = 4.0  # of a token, in English
BYTES_FULL, BYTES_LORA = 16, 4  # bytes of a parameter: with gradients and Adam's moments in float32, and frozen
BYTES_PROCESS = 3 * GIB  # a process and its activations


class SizedEncoder(TextEncoder, Protocol):
    """An encoder that tells the size of its vectors."""

    def get_embedding_dimension(self) -> int | None:
        """Return the number of dimensions of a vector."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A model that a race starts from.

    Attributes:
        name: unique name in tables and folders.
        model: path or name that opens it.
        fingerprint: hash of its files, or its Hub id.
        is_bare: whether it is a language model without embedding settings; others are scored as they are.
        trains: whether it is trained too.
    """

    name: str
    model: str
    fingerprint: str
    is_bare: bool
    trains: bool

    @property
    def is_saved_by_embrew(self) -> bool:
        """Whether embrew saved it."""
        return os.path.lexists(final_stage(Path(self.model)) / SETTINGS)

    def open(self) -> SizedEncoder:
        """Return a ready model as it is; a bare language model has no embedding settings."""
        return cast("SizedEncoder", open_model(self.model, as_trained=True))


def find_start(model: str, *, trains: bool) -> Start:
    """Return a model as a start, by its files alone; its name is not yet compared with others.

    Args:
        model: a causal language model, a Sentence-Transformers model, an encoder or export of embrew, an output folder
            of `adapt` (its best encoder is meant), or a BERT-type encoder.
        trains: whether it is trained too.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: it is a recipe, or no model; an output folder whose best encoder was not trained or exported.
    """
    if is_recipe(model):
        raise ValueError(f"{model} is a recipe; give the model, or train it with embrew train")
    path = Path(model)
    if (path / REPORT).is_file():
        opened = _best_of(path)
    else:
        opened = str(path.absolute()) if path.exists() else model
        check_is_model(model, path)
    return Start(
        name=start_name(model),
        model=opened,
        fingerprint=fingerprint(opened),
        is_bare=is_bare(opened),
        trains=trains,
    )


def start_name(model: str | Path) -> str:
    """Return the name of a model: its folder's, file's or Hub id's; of a folder in general terms the one around it."""
    path = Path(model).absolute() if Path(model).exists() else Path(model)
    name = path.stem if path.suffix == ".gguf" else path.name
    if name in GENERAL and path.parent.name:
        name = path.parent.name
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "model"


def _best_of(folder: Path) -> str:
    """Return the best encoder of an output folder of `adapt`."""
    report = read_json(folder / REPORT, keys=("encoder", "exported"), repair="run adapt again", sealed=True)
    encoder = report["encoder"] or report["exported"]
    if encoder is None:
        raise ValueError(f"the best of {folder} is {report['best']}, which was not trained; give that model itself")
    return str(path_inside(folder, encoder, source=folder / REPORT, key="encoder").absolute())


def fingerprint(model: str) -> str:
    """Return what changes when the files of a model do: names, sizes, and samples of what is in them."""
    folder = local_model(model)
    if folder is None or not folder.exists():
        return model
    digest = hashlib.sha256()
    files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)} {size}".encode())
        with path.open("rb") as file:
            for offset in sorted({0, max(0, size // 2 - SAMPLE), max(0, size - SAMPLE)}):
                file.seek(offset)
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def with_earlier(folder: Path, starts: Sequence[Start]) -> list[Start]:
    """Return the starts of an output folder: those of earlier calls, then new ones, each with a name of its own.

    Raises:
        FileNotFoundError: a model of an earlier call is no longer where it was, and is not given.
    """
    file = folder / STARTS
    merged: list[Start] = []
    if file.is_file():
        merged = [Start(**values) for values in read_json(file, keys=("starts",), repair=REPAIR, sealed=True)["starts"]]
    for new in starts:
        same = next((i for i, earlier in enumerate(merged) if earlier.fingerprint == new.fingerprint), None)
        if same is not None:  # it may have moved, or is to be trained now
            merged[same] = replace(new, name=merged[same].name, trains=merged[same].trains or new.trains)
            continue
        names = {earlier.name for earlier in merged}
        number = next(i for i in range(1, len(names) + 2) if _numbered(new.name, i) not in names)
        merged.append(replace(new, name=_numbered(new.name, number)))
    for start in merged:
        if Path(start.model).is_absolute() and not os.path.lexists(start.model):
            raise FileNotFoundError(f"{start.name} of an earlier call is no longer in {start.model}; give it again")
    return merged


def write_starts(folder: Path, starts: Sequence[Start]) -> None:
    """Write the starts of an output folder; the file is for this machine, since it holds paths."""
    values = [vars(start) for start in starts]
    write_json(folder / STARTS, sealed({"format": formats.ADAPTED.number, "starts": values}))


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def open_to_train(start: Start) -> tuple[Encoder, Keys]:
    """Return a ready model as an encoder to train, and the keys of a recipe's `encoder` that describe it.

    Raises:
        ValueError: it cannot be trained, and is scored as it is only; the message gives the reason.
    """
    if (Path(start.model) / "parity.json").is_file() and not (Path(start.model) / "modules.json").is_file():
        raise ValueError(f"{start.name} is an export for other runtimes, whose weights cannot be trained")
    encoder = Encoder.from_pretrained(start.model)
    others = [name for name, text in encoder.prompts.items() if name not in SIDES and text]
    if start.is_saved_by_embrew and (others or encoder.contexts or encoder.demonstrator is not None):
        raise ValueError(f"{start.name} has further prompts ({', '.join(others) or 'demonstrations'})")
    adapter = active_adapter(encoder)
    continued = {} if adapter is None else {"lora": {key: adapter[key] for key in LORA if adapter.get(key)}}
    return encoder, recipe_keys(encoder.settings) | continued | {
        key: len(ids)
        for key, ids in (
            ("memory_tokens", encoder.backbone.memory_ids),
            ("soft_prompt_tokens", encoder.backbone.soft_prompt_ids),
        )
        if ids
    }


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
