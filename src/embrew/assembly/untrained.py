"""Bare language models: they have no pooling of their own, so one of the untrained baselines is chosen for them."""

from __future__ import annotations

import os
from pathlib import Path

from embrew.assembly.encoders import encoder
from embrew.encoder import Encoder
from embrew.files import checksums
from embrew.files.writing import recover
from embrew.recipe import Recipe, list_recipes
from embrew.storage.base_model import ASSETS, is_encoder, open_config

POOLINGS = {
    "last": "baselines/last-token",
    "mean": "baselines/mean",
    "weighted_mean": "baselines/weighted-mean",
    "prompteol": "baselines/prompteol",
}
"""Recipes of the ways to read a bare language model, by the names that users give."""
OWN = ("embrew.json", "run.json", "parity.json", "modules.json", checksums.NAME)  # files of models with a pooling


def is_recipe(name: str) -> bool:
    """Return whether a name is that of a shipped recipe, or of a YAML file."""
    return name in list_recipes() or Path(name).suffix in (".yaml", ".yml")


def is_bare(name: str) -> bool:
    """Return whether a model is a language model without embedding settings, by its files.

    A BERT-type encoder is none: it was trained to be read at all its tokens.

    Raises:
        FileNotFoundError: no such model.
        ValueError: transformers does not know its family.
    """
    if is_recipe(name):
        return False
    folder = Path(name)
    if not folder.exists():
        recover(folder)
    if any(os.path.lexists(folder / file) for file in OWN):
        return False
    if name not in ASSETS and not folder.exists() and on_hub(name, "modules.json"):
        return False
    return not is_encoder(open_config(name, str(ASSETS.get(name, name))))


def open_bare(name: str, pooling: str, *, dtype: str = "auto") -> Encoder:
    """Return a bare language model as an encoder that is read in one of the ways of `POOLINGS`."""
    recipe = Recipe.load(POOLINGS[check_pooling(pooling)])
    config = recipe.encoder.model_copy(update={"model": name, "dtype": dtype})
    return encoder(recipe.model_copy(update={"encoder": config}))


def check_pooling(pooling: str) -> str:
    """Return the name of a pooling; raise if it is not one of `POOLINGS`."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling!r}; choose from {', '.join(POOLINGS)}")
    return str(pooling)


def no_pooling(name: str, why: str = "") -> ValueError:
    """Return the error for a bare language model without a pooling."""
    return ValueError(
        f"{name} is a language model without embedding settings, so it has no pooling{why}; choose one with --pooling "
        f"(in Python pooling=): {', '.join(POOLINGS)}; or give a recipe, such as baselines/mean encoder.model={name}"
    )


def on_hub(name: str, filename: str) -> bool:
    """Return whether a model of the Hub, or of its cache, has a file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        hf_hub_download(name, filename)
    except (HFValidationError, HfHubHTTPError, OSError):
        return False
    return True
