"""Build the objective that a stage describes."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from embrew.config.suggestions import choose_from
from embrew.config.validation_errors import KeyPath, dotted
from embrew.methods import OBJECTIVES, EmbeddingObjective, Objective
from embrew.methods.base import check_values
from embrew.recipe import Recipe


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe as `Recipe.load`; an override of an objective's type drops the recipe's keys that it lacks."""
    return Recipe.load(name_or_path, overrides, keys_of=objective_keys)


def objective_keys(name: Any) -> Collection[str] | None:
    """Return the keys of a type of objective in a recipe; None: there is no such type."""
    try:
        names = [field.name for field in fields(_kind(name, ()))]
    except ValueError:
        return None
    return [*names, "scale"] if "temperature" in names else names


def objective(settings: Mapping[str, Any], *, path: KeyPath = ()) -> Objective:
    """Build an objective from its recipe block, by name or as `package.module:Class`.

    Args:
        settings: the block.
        path: its keys in the recipe, for messages, for example `("stages", "align", "objective")`.

    Raises:
        ValueError: unknown type, unknown setting, or invalid value.
    """
    settings = dict(settings)
    name = settings.pop("type", None)
    kind = _kind(name, path)
    words = "" if path else f"objective {name}: "
    here = f"{dotted(path)}: objective {name}" if path else f"objective {name}"
    names = [field.name for field in fields(kind)]
    if "scale" in settings and "temperature" in names:
        settings["temperature"] = _from_scale(settings, here)
    unknown = next((key for key in settings if key not in names), None)
    if unknown is not None:
        raise ValueError(f"{here} has no key {unknown!r}; {choose_from(unknown, names)}")
    if isinstance(settings.get("base"), Mapping):
        settings["base"] = objective(settings["base"], path=(*path, "base") if path else ())
    if "base" in settings and "base" in names and not isinstance(settings["base"], EmbeddingObjective):
        if isinstance(settings["base"], Objective):
            raise ValueError(f"{here}: base depends on more than embeddings; it cannot be nested")
        raise ValueError(
            f"{here}: base={settings['base']!r}; give an objective as a mapping, such as {{type: contrastive}}"
        )
    required = [field.name for field in fields(kind) if field.init and _is_required(field)]
    missing = [key for key in required if key not in settings]
    if missing:
        raise ValueError(f"{words}{dotted((*path, missing[0]))} is missing; it is required")
    checked = check_values(kind, settings, path=path, words=words)
    try:
        return kind(**{name: getattr(checked, name) for name in settings})
    except ValueError as error:  # incompatible settings
        raise ValueError(f"{here}: {error}") from None


def _kind(name: Any, path: KeyPath) -> type[Objective]:
    here = f"{dotted((*path, 'type'))}" if path else "objective type"
    if not isinstance(name, str):
        raise ValueError(f"{here}={name!r}; give an objective's name, for example type: contrastive")
    if ":" not in name:
        if name not in OBJECTIVES:
            raise ValueError(f"{here}={name!r}; {choose_from(name, OBJECTIVES)}")
        return OBJECTIVES[name]
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{here}={name!r} cannot be imported ({error}); give package.module:Class") from None
    if not (isinstance(kind, type) and issubclass(kind, Objective) and is_dataclass(kind)):
        raise ValueError(f"{here}={name!r} is not a dataclass derived from embrew.methods.Objective")
    return kind


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _from_scale(settings: dict[str, Any], here: str) -> float:
    """Return the temperature, 1 / scale, and remove `scale`, which Sentence-Transformers and LLM2Vec use."""
    scale = settings.pop("scale")
    if "temperature" in settings:
        raise ValueError(f"{here}: scale is 1 / temperature; give one of them")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < float("inf"):
        raise ValueError(f"{here}: scale={scale!r}; give a number above 0, such as 20 (temperature 0.05)")
    return 1.0 / scale
