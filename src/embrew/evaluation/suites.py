"""Suites: YAML files with tasks, their settings, and named averages over them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from embrew.config.suggestions import choose_from
from embrew.config.validation import KeyPath, explain
from embrew.config.yaml_files import line_of, list_shipped, parse_yaml, read_shipped
from embrew.data.reading import expand
from embrew.evaluation.find import find_task
from embrew.evaluation.grid import cells
from embrew.evaluation.hotpotqa import HotpotQA
from embrew.evaluation.kinds.rag import RAG
from embrew.evaluation.mteb_tasks import MtebTask, fetched_folder
from embrew.evaluation.prompts import EVALUATION_INSTRUCTIONS
from embrew.evaluation.scoring import check_settings
from embrew.evaluation.task import Task
from embrew.files.names import check_file_name


class TaskEntry(BaseModel):
    """A task of a suite: a data folder below the suite's, a task of MTEB, or a data set of the Hub with questions.

    Further keys are settings of the task's kind. A data set of the Hub is stored as a folder by `data fetch`.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    data: str | None = None
    mteb: str | None = None
    hub: str | None = None
    name: str | None = None
    split: str | None = None
    kind: str | None = None
    subset: str | None = None
    instruction: str | None = None
    revision: str | None = None
    corpus_splits: list[str] | None = None

    @field_validator("name", "split", "subset")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        return name if name is None else check_file_name(name, what="it")

    @field_validator("corpus_splits")
    @classmethod
    def _check_names(cls, names: list[str] | None) -> list[str] | None:
        return names if names is None else [check_file_name(name, what="it") for name in names]


class SuiteFile(BaseModel):
    """The YAML file of a suite.

    Attributes:
        instructions: Name of a table with one instruction per task.
        prompt: Prefix of a text; `{instruction}` is replaced by the instruction.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tasks: list[TaskEntry]
    instructions: str | None = None
    prompt: str = "{instruction} "
    averages: dict[str, list[str]] = {}


@dataclass(frozen=True)
class Suite:
    """Tasks whose data exists (or that mteb knows), and named averages over them."""

    name: str
    tasks: tuple[Task | MtebTask, ...]
    averages: Mapping[str, tuple[str, ...]]


def list_suites() -> list[str]:
    """Return the names of the shipped suites."""
    return list_shipped("suites")


def read_suite(name_or_path: str | Path, *, data: str | Path | None = None) -> Suite:
    """Read a shipped suite by name, or a YAML file.

    Args:
        data: Folder with the tasks' data folders and MTEB's fetched data; default: `$EMBREW_DATA`.

    Raises:
        FileNotFoundError: no such suite, or missing data (all of it is named).
        ValueError: not YAML, an unknown key, or a setting that is not one of the task's kind.
    """
    suite, source, at = _parse(name_or_path)
    if suite.instructions is not None and suite.instructions not in EVALUATION_INSTRUCTIONS:
        known = ", ".join(EVALUATION_INSTRUCTIONS)
        raise ValueError(f"{at(('instructions',))}instructions={suite.instructions!r}; choose from {known}")
    if "{instruction}" not in suite.prompt:
        raise ValueError(f"{at(('prompt',))}prompt={suite.prompt!r} has no {{instruction}} to fill in")
    sources = {i: source_of(entry) for i, entry in enumerate(suite.tasks) if entry.hub is not None}
    local = [entry.data for entry in suite.tasks if entry.data is not None]
    local += [found.folder for found in sources.values()]
    needed = data is not None or local or "EMBREW_DATA" in os.environ
    root = Path(expand(data if data is not None else "$EMBREW_DATA")) if needed else None
    missing = sorted({folder for folder in local if root and not _folder(root, folder).exists()})
    if missing:
        fetched = any(found.folder in missing for found in sources.values())
        hint = f"; embrew data fetch {name_or_path} --to {root} fetches data sets of the Hub" if fetched else ""
        raise FileNotFoundError(f"{source}: {root} lacks {', '.join(missing)}{hint}")
    tasks: list[Task | MtebTask] = []
    for i, entry in enumerate(suite.tasks):
        try:
            if i in sources:
                tasks += cells(_task(root or Path(), sources[i].folder, entry, suite))
            elif entry.data is not None:
                tasks += cells(_task(root or Path(), entry.data, entry, suite))
            else:
                tasks.append(_mteb_task(root, entry, suite))
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(f"{at(('tasks', i))}{error}") from None
    names = {task.name for task in tasks}
    for average, members in suite.averages.items():
        unknown = [member for member in members if member not in names]
        if unknown or not members:
            raise ValueError(
                f"{at(('averages', average))}{', '.join(unknown) or 'nothing'} is not a task of the suite; "
                + choose_from(", ".join(unknown), sorted(names))
            )
    averages = {name: tuple(members) for name, members in suite.averages.items()}
    return Suite(str(name_or_path), tuple(tasks), averages)


def read_averages(name_or_path: str | Path) -> dict[str, list[str]]:
    """Return the named averages of a suite; its data need not exist."""
    return _parse(name_or_path)[0].averages


def fetchable(name_or_path: str | Path) -> tuple[list[MtebTask], list[HotpotQA], list[str]]:
    """Return a suite's tasks of MTEB, its data sets of the Hub, and its data folders, which cannot be fetched."""
    suite, _, _ = _parse(name_or_path)
    tasks = [_mteb_task(None, entry, suite) for entry in suite.tasks if entry.data is None and entry.hub is None]
    sources = [source_of(entry) for entry in suite.tasks if entry.hub is not None]
    return tasks, list(dict.fromkeys(sources)), [entry.data for entry in suite.tasks if entry.data is not None]


def source_of(entry: TaskEntry) -> HotpotQA:
    """Return the data set of the Hub that an entry names."""
    assert entry.hub is not None
    splits = {"split": entry.split} if entry.split else {}
    return HotpotQA(
        entry.hub, entry.subset, corpus_splits=tuple(entry.corpus_splits or ()), revision=entry.revision, **splits
    )


def _parse(name_or_path: str | Path) -> tuple[SuiteFile, str, Callable[[KeyPath], str]]:
    """Return a suite's file, its source, and a function from a key to `SOURCE:LINE: ` for error messages."""
    text, source = read_shipped("suites", name_or_path, what="suite")
    values = parse_yaml(text, source=source)
    if not isinstance(values, dict):
        raise ValueError(f"{source}: a suite is a mapping with the keys {', '.join(SuiteFile.model_fields)}")

    def at(path: KeyPath) -> str:
        line = line_of(text, path)
        return f"{source}:{line}: " if line else f"{source}: "

    try:
        suite = SuiteFile.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain(error, SuiteFile, values, place=at)) from None
    if not suite.tasks:
        raise ValueError(f"{source}: tasks is empty; give at least one, e.g. tasks: [{{data: STSB}}]")
    return suite, source, at


def _folder(root: Path, data: str) -> Path:
    return Path(expand(data)) if data.startswith(("$", "/", "~")) else root / data


def _task(root: Path, data: str, entry: TaskEntry, suite: SuiteFile) -> Task:
    if sum(given is not None for given in (entry.data, entry.mteb, entry.hub)) > 1:
        raise ValueError("data, mteb and hub exclude each other; give one of them")
    if entry.hub is None and (entry.subset or entry.revision or entry.corpus_splits):
        raise ValueError(
            "subset, revision and corpus_splits are for mteb and hub, not for data folders; leave them out"
        )
    if entry.hub is not None and entry.kind not in (None, RAG.name):
        raise ValueError(f"kind={entry.kind!r}, but a data set of the Hub is evaluated as rag; leave kind out")
    settings: dict[str, Any] = dict(entry.model_extra or {})
    name = entry.name or Path(entry.hub or data).name
    prompt = _prompt(entry, suite, name)
    if prompt is not None:
        settings["instruction"] = prompt
    kind, split = (RAG.name, source_of(entry).split) if entry.hub is not None else (entry.kind, entry.split)
    task = find_task(_folder(root, data), split=split, kind=kind, name=name, **settings)
    check_settings(task)
    return task


def _mteb_task(root: Path | None, entry: TaskEntry, suite: SuiteFile) -> MtebTask:
    if entry.mteb is None:
        raise ValueError("a task needs data: FOLDER or mteb: NAME (or hub: DATA SET)")
    ours = [key for key in ("kind", "revision", "corpus_splits") if getattr(entry, key) is not None]
    unknown = sorted([*(entry.model_extra or {}), *ours])
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} is not a setting of an mteb task; choose from name, split, subset, instruction"
        )
    name = entry.name or entry.mteb
    task = MtebTask(name, entry.mteb, entry.subset, entry.split, _prompt(entry, suite, entry.mteb))
    fetched = fetched_folder(root, task) if root is not None else None
    return replace(task, data=fetched) if fetched is not None and fetched.is_dir() else task


def _prompt(entry: TaskEntry, suite: SuiteFile, name: str) -> str | None:
    table = EVALUATION_INSTRUCTIONS[suite.instructions] if suite.instructions else {}
    instruction = entry.instruction or table.get(name)
    return None if instruction is None else suite.prompt.replace("{instruction}", instruction)
