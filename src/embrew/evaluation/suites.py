"""Suites: named lists of tasks with their settings, and the averages that are quoted of them, as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from embrew.data.reading import expand
from embrew.evaluation.kinds import check_settings
from embrew.evaluation.tasks import Task, find_task
from embrew.overrides import line_of, parse_yaml
from embrew.recipe_errors import KeyPath, explain
from embrew.shipped import list_shipped, read_shipped


class TaskEntry(BaseModel):
    """A task of a suite: a data folder below the suite's, and what `find_task` takes; all else are settings."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    data: str
    name: str | None = None
    split: str | None = None
    kind: str | None = None


class SuiteFile(BaseModel):
    """What the YAML file of a suite says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tasks: list[TaskEntry]
    averages: dict[str, list[str]] = {}


@dataclass(frozen=True)
class Suite:
    """Tasks whose data has been found, and named averages over them."""

    name: str
    tasks: tuple[Task, ...]
    averages: Mapping[str, tuple[str, ...]]


def list_suites() -> list[str]:
    """Names of the shipped suites."""
    return list_shipped("suites")


def read_suite(name_or_path: str | Path, *, data: str | Path | None = None) -> Suite:
    """A shipped suite by name, or a YAML file.

    Args:
        data: The folder the tasks' data folders are in; default: `$EMBREW_DATA`.

    Raises:
        FileNotFoundError: no such suite, or data that is not there (all of it is named).
        ValueError: not YAML, an unknown key, or a setting that is not one of the task's kind.
    """
    text, source = read_shipped("suites", name_or_path, what="suite")
    values = parse_yaml(text, source=source)
    if not isinstance(values, dict):
        raise ValueError(f"{source}: a suite is a mapping with the keys {', '.join(SuiteFile.model_fields)}")

    def place(path: KeyPath) -> str:
        line = line_of(text, path)
        return f"{source}:{line}: " if line else f"{source}: "

    try:
        suite = SuiteFile.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain(error, SuiteFile, values, place=place)) from None
    if not suite.tasks:
        raise ValueError(f"{source}: tasks is empty; give at least one, e.g. tasks: [{{data: STSB}}]")
    root = Path(expand(data if data is not None else "$EMBREW_DATA"))
    missing = sorted({entry.data for entry in suite.tasks if not _folder(root, entry.data).exists()})
    if missing:
        raise FileNotFoundError(f"{source}: {root} lacks {', '.join(missing)}")
    tasks = []
    for i, entry in enumerate(suite.tasks):
        try:
            task = _task(root, entry)
            check_settings(task)
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(f"{place(('tasks', i))}{error}") from None
        tasks.append(task)
    names = {task.name for task in tasks}
    for average, members in suite.averages.items():
        unknown = [member for member in members if member not in names]
        if unknown or not members:
            raise ValueError(
                f"{place(('averages', average))}{', '.join(unknown) or 'nothing'} is no task of the suite; "
                f"choose from {', '.join(sorted(names))}"
            )
    averages = {name: tuple(members) for name, members in suite.averages.items()}
    return Suite(str(name_or_path), tuple(tasks), averages)


def _folder(root: Path, data: str) -> Path:
    return Path(expand(data)) if data.startswith(("$", "/", "~")) else root / data


def _task(root: Path, entry: TaskEntry) -> Task:
    settings: dict[str, Any] = dict(entry.model_extra or {})
    return find_task(
        _folder(root, entry.data),
        split=entry.split,
        kind=entry.kind,
        name=entry.name or Path(entry.data).name,
        **settings,
    )
