"""The data folders of results, only where their files are those that were evaluated."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embrew.data.reading import expand
from embrew.evaluation.find import find_task
from embrew.evaluation.mteb_tasks import MtebTask
from embrew.evaluation.paths import read_paths
from embrew.evaluation.report import Result
from embrew.evaluation.task import COMMON_SETTINGS, PART_PREFIX, Part, Task
from embrew.files.checksums import content_hash
from embrew.files.names import shown_path
from embrew.report.comparison import MODEL_SETTINGS, Comparison

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
    folders = [*stored, *([Path(expand("$EMBREW_DATA")) / name] if "EMBREW_DATA" in os.environ else [])]
    candidates = (_task_in(folder, result) for folder in dict.fromkeys(folders) if folder.exists())
    return next((task for task in candidates if task is not None), None)


def _task_in(folder: Path, result: Result) -> Task | None:
    """Return the task of a result with the data of a folder or file; None if their content is another."""
    settings = {key: value for key, value in result.run.get("settings", {}).items() if key not in MODEL_SETTINGS}
    part = settings.pop("part", None)
    try:
        task = find_task(
            folder,
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
    for compared in comparison.tasks:
        stored = [of_folder[".".join(compared.key)] for of_folder in paths if ".".join(compared.key) in of_folder]
        task = task_of(compared.first, tasks, stored)
        if task is not None:
            instructions = {seeds[0].run.get("settings", {}).get("instruction") for seeds in compared.results}
            settings = {name: value for name, value in task.settings.items() if name not in COMMON_SETTINGS}
            if len(instructions) == 1 and instructions != {None}:
                settings["instruction"] = instructions.pop()
            data[compared.key] = replace(task, settings=settings)
        elif stored:
            what = "has changed since" if stored[0].exists() else "is no longer on this machine"
            reasons[compared.key] = f"{shown_path(stored[0])} {what}"
    return data, reasons


def _is_same(task: Task, run: Mapping[str, Any]) -> bool:
    return run.get("dataset_revision") == content_hash(task.files)
