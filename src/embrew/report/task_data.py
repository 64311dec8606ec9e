"""The data folders of results, only where their files are those that were evaluated."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embrew.comparison.comparing import OF_THE_MODEL, Comparison
from embrew.data.reading import expand
from embrew.evaluation.find import find_task
from embrew.evaluation.mteb_tasks import MtebTask
from embrew.evaluation.paths import read_paths
from embrew.evaluation.report import Result
from embrew.evaluation.task import COMMON_SETTINGS, PART_PREFIX, Part, Task
from embrew.files.checksums import content_hash
from embrew.files.names import shown_path

Tasks = Sequence[Task | MtebTask]


def task_of(result: Result, tasks: Tasks = (), stored: Sequence[Path] = ()) -> Task | None:
    """Return the task of a result with its data; None if data with the same content is not at hand.

    Folders are looked for among the given tasks, then those that were stored with results, then in `$EMBREW_DATA`, by
    the task's name.
    """
    name, split = result.task, result.split
    for task in tasks:
        if isinstance(task, Task) and (task.name, task.split_label) == (name, split) and _is_same(task, result.run):
            return task
    places = [*stored, *([Path(expand("$EMBREW_DATA")) / name] if "EMBREW_DATA" in os.environ else [])]
    in_places = (_in_place(place, result) for place in dict.fromkeys(places) if place.exists())
    return next((task for task in in_places if task is not None), None)


def _in_place(place: Path, result: Result) -> Task | None:
    """Return the task of a result with the data of a folder or file; None if their content is another."""
    settings = {key: value for key, value in result.run.get("settings", {}).items() if key not in OF_THE_MODEL}
    part = settings.pop("part", None)
    try:
        task = find_task(
            place,
            split=result.split.removeprefix(PART_PREFIX),
            kind=result.kind,
            name=result.task,
            part=None if part is None else Part(**{**part, "left_out": tuple(part.get("left_out", ()))}),
            **settings,
        )
    except (OSError, ValueError):  # another folder of the same name
        return None
    return task if _is_same(task, result.run) else None


def data_of(
    comparison: Comparison, tasks: Tasks = (), results: Sequence[Path | None] = ()
) -> tuple[dict[tuple[str, str], Task], dict[tuple[str, str], str]]:
    """Return the tasks of a comparison whose data are at hand, and why data that were stored are not used.

    An instruction is kept if all models have the same.

    Args:
        comparison: The models and their tasks.
        tasks: Tasks that a user gave.
        results: Folders of results, which may say where the data were.
    """
    data, reasons = {}, {}
    paths = [read_paths(folder).data for folder in results if folder is not None]
    for key in (task.key for task in comparison.tasks):
        scored = [next(one for one in model.seeds[0] if (one.task, one.split) == key) for model in comparison.models]
        stored = [each[".".join(key)] for each in paths if ".".join(key) in each]
        task = task_of(scored[0], tasks, stored)
        if task is not None:
            instructions = {one.run.get("settings", {}).get("instruction") for one in scored}
            settings = {name: value for name, value in task.settings.items() if name not in COMMON_SETTINGS}
            if len(instructions) == 1 and instructions != {None}:
                settings["instruction"] = instructions.pop()
            data[key] = replace(task, settings=settings)
        elif stored:
            what = "has changed since" if stored[0].exists() else "is no longer on this machine"
            reasons[key] = f"{shown_path(stored[0])} {what}"
    return data, reasons


def _is_same(task: Task, run: Mapping[str, Any]) -> bool:
    return run.get("dataset_revision") == content_hash(task.files)
