"""The objective that a stage describes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from embrew.build.names import check_known, nearest
from embrew.objectives import OBJECTIVES, EmbeddingObjective, Objective


def objective(settings: Mapping[str, Any]) -> Objective:
    """An objective from its recipe block, by name or as `package.module:Class`.

    Raises:
        ValueError: unknown type, unknown setting, or a value that does not fit.
    """
    settings = dict(settings)
    name = settings.pop("type")
    if ":" in name:
        module, _, attribute = name.partition(":")
        kind = getattr(importlib.import_module(module), attribute)
    elif name in OBJECTIVES:
        kind = OBJECTIVES[name]
    else:
        raise ValueError(f"objective type={name!r}; choose from {', '.join(OBJECTIVES)}{nearest(name, OBJECTIVES)}")
    names = [field.name for field in fields(kind)]
    if "scale" in settings and "temperature" in names:
        settings["temperature"] = _from_scale(settings, name)
    check_known(settings, names, f"objective {name}")
    if isinstance(settings.get("base"), Mapping):
        settings["base"] = objective(settings["base"])
        if not isinstance(settings["base"], EmbeddingObjective):
            raise ValueError(f"objective {name}: base looks at more than embeddings; it cannot be nested")
    try:
        return TypeAdapter(kind).validate_python(settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"objective {name}: {key}={first['input']!r}: {first['msg']}") from None


def _from_scale(settings: dict[str, Any], name: str) -> float:
    """1 / scale, as Sentence-Transformers and LLM2Vec say a temperature; it is taken out of the settings."""
    scale = settings.pop("scale")
    if "temperature" in settings:
        raise ValueError(f"objective {name}: scale is 1 / temperature; give one of them")
    if not isinstance(scale, int | float) or scale <= 0:
        raise ValueError(f"objective {name}: scale={scale!r}; give a number above 0, such as 20 (temperature 0.05)")
    return 1.0 / scale
