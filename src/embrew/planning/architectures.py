"""The configuration and the tokenizer of a model, without its weights, as far as they are on this machine."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from embrew.recipe import Recipe
from embrew.storage.base_model import ASSETS, open_config, quiet


def config_of(recipe: Recipe) -> tuple[Any, bool]:
    """Return the configuration of a recipe's language model, and whether it is the model's own file.

    Where that is not on this machine, the shapes that embrew ships for the models of its recipes are used.

    Raises:
        FileNotFoundError: neither is at hand.
    """
    name = recipe.encoder.model
    try:
        trust_remote_code = recipe.encoder.trust_remote_code
        return open_config(name, _source(name), trust_remote_code=trust_remote_code, **_options(recipe)), True
    except FileNotFoundError:
        shapes = yaml.safe_load((files("embrew") / "planning" / "architectures.yaml").read_text(encoding="utf-8"))
        if name not in shapes:
            if Path(name).is_absolute() or name.startswith("."):
                raise FileNotFoundError(f"no folder {name!r}; encoder.model is a folder or the id of a model") from None
            raise FileNotFoundError(
                f"the configuration of {name!r} is not on this machine, and its shape is none that embrew ships; "
                f"download it (hf download {name} config.json), or give a folder that holds config.json: "
                "encoder.model=DIR"
            ) from None
    return AutoConfig.for_model(**shapes[name]), False


def tokenizer_of(recipe: Recipe) -> tuple[PreTrainedTokenizerBase, bool]:
    """Return the tokenizer of a recipe's model, and whether it is its own; nano's stands in for one not at hand."""
    name = recipe.encoder.model
    with quiet():
        try:
            trust_remote_code = recipe.encoder.trust_remote_code
            return AutoTokenizer.from_pretrained(
                _source(name), trust_remote_code=trust_remote_code, **_options(recipe)
            ), True
        except (OSError, ValueError, KeyError):
            return AutoTokenizer.from_pretrained(str(ASSETS["nano"]), trust_remote_code=False), False


def _source(name: str) -> str:
    return str(ASSETS.get(name, Path(name) if Path(name).is_dir() else name))


def _options(recipe: Recipe) -> dict[str, Any]:
    config = recipe.encoder
    on_hub = config.model not in ASSETS and not Path(config.model).is_dir()
    return {"revision": config.revision, "local_files_only": True} if on_hub else {}
