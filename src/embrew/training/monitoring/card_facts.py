"""Facts for the card of a trained encoder: data, scores and recipe, without paths of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embrew import assembly
from embrew.config.yaml_text import dump_yaml
from embrew.data.reading import public_name
from embrew.recipe import DataConfig, Recipe

if TYPE_CHECKING:
    from datasets import Dataset


def dataset_facts(config: DataConfig, rows: Dataset) -> dict[str, Any]:
    """Describe a data set that was trained on: name, split, revision, and number of rows after all filters."""
    paths = [config.path] if isinstance(config.path, str) else config.path
    names = [public_name(path) for path in paths]
    found: dict[str, Any] = {
        "name": ", ".join(name for name, _ in names),
        "hub": [name for name, on_hub in names if on_hub],
        "config": config.name,
        "split": config.split,
        "revision": config.revision,
        "rows": len(rows),
    }
    return {key: value for key, value in found.items() if value is not None}


def card_facts(
    recipe: Recipe,
    index: int,
    log: Mapping[str, Any],
    about: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the facts that the card of stage `index` is written from.

    Args:
        recipe: all stages.
        index: the last one trained.
        log: `run.json`: scores, data and curves of all stages so far.
        about: kind, split and metric of the dev and guard sets.
        before: the facts of the encoder that training started from, if it was trained before.
    """
    names = [stage.name for stage in recipe.stages[: index + 1]]
    record: dict[str, Any] = {
        "stage": names[-1],
        "objectives": {stage.name: _named(stage.objective) for stage in recipe.stages[: index + 1]},
        "arithmetic": dict(log.get("arithmetic", {})),
        "recipe": dump_yaml(recipe.public().model_dump(mode="json", exclude_defaults=True)),
        "data": {name: log["data"][name] for name in names if name in log["data"]},
        "scores": {name: log["scores"][name] for name in ("base", *names) if name in log["scores"]},
        "curves": {name: curve for name, curve in log.get("curves", {}).items() if name in names},
        "kept": {name: step for name, step in log.get("kept", {}).items() if name in names},
        "about": dict(about or {}),
    }
    if before is not None:
        record["before"] = dict(before)
    return record


def _named(objective: Mapping[str, Any]) -> str:
    """An objective's type, with its preset if it has presets: they are different losses."""
    preset = getattr(assembly.objective(objective), "preset", None)
    return objective["type"] + ("" if preset is None else f", preset {preset}")
