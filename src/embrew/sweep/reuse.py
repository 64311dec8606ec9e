"""Reuse stages that another run has finished with the same settings."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from embrew.files import formats
from embrew.files.checksums import sealed
from embrew.files.writing import atomic_folder, write_json
from embrew.recipe import Recipe
from embrew.training.run_json import BASE, RUN, read_run
from embrew.training.stage_json import STAGE, StageSettings, changed_inputs, read_stage

logger = logging.getLogger(__name__)
KEYS_BY_STAGE = ("scores", "seconds", "data", "curves", "kept", "arithmetic", "gap", "losses", "samples", "rejected")
"""Keys of `run.json` that hold values per stage."""


def reuse_stages(recipe: Recipe, folder: Path, others: Iterable[Path]) -> list[tuple[str, Path]]:
    """Copy the leading stages of a recipe from other runs that have finished them with the same settings.

    Copying ends at the first stage that no other run has finished; stages that exist in `folder` are not changed. A
    stage's entries in `run.json` (scores, time, data) are copied too; its card and `recipe.yaml` stay those of the
    other run.

    Args:
        recipe: recipe whose stages are needed.
        folder: folder of its run.
        others: folders of runs to search; those trained from another encoder (`start`) are skipped.

    Returns:
        The names of the copied stages, each with the run it is from.
    """
    reused = []
    settings = StageSettings(recipe, folder)
    runs = [other for other in others if other != folder]
    for index, stage in enumerate(recipe.stages):
        if (folder / stage.name / STAGE).exists():
            continue
        source = next((run for run in runs if _could_reuse(settings, run / stage.name, index)), None)
        if source is None:
            break
        _copy_results(recipe, stage.name, source, folder)
        with atomic_folder(folder / stage.name, marker=STAGE) as new:
            shutil.copytree(source / stage.name, new, dirs_exist_ok=True)
        logger.info("%s  reused from %s", stage.name, source)
        reused.append((stage.name, source))
    return reused


def _could_reuse(settings: StageSettings, folder: Path, index: int) -> bool:
    """Return whether a folder holds stage `index` with these settings, trained from the recipe's language model."""
    written = read_stage(folder)
    if written is None or "start" in written or written["arithmetic"] != settings.compute_dtypes(index):
        return False
    return settings.differing_keys(written, index) is None and not changed_inputs(
        settings.inputs(index), written["content"]
    )


def _copy_results(recipe: Recipe, stage: str, source: Path, folder: Path) -> None:
    """Copy the results of a stage, and of the untrained encoder, to `run.json` of another run.

    Results of an interrupted attempt at the stage belong to other weights; they are replaced or removed.
    """
    defaults = {"format": formats.RUN.number, "stages": [stage.name for stage in recipe.stages]}
    results, source_results = {**defaults, **read_run(folder)}, read_run(source)
    for key in KEYS_BY_STAGE:
        values = source_results.get(key, {})
        results.get(key, {}).pop(stage, None)
        if stage in values:
            results.setdefault(key, {})[stage] = values[stage]
        if "base" in values:
            results.setdefault(key, {}).setdefault("base", values["base"])
    for key in (BASE, "sets"):
        if key in source_results:
            results.setdefault(key, source_results[key])
    write_json(folder / RUN, sealed(results))
