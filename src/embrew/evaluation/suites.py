"""Suites: YAML files with tasks, their settings, and named averages over them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from shlex import quote

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from embrew.data.reading import expand
from embrew.evaluation.find import cells, find_task
from embrew.evaluation.hotpotqa import HotpotQA
from embrew.evaluation.kinds.rag import RAG
from embrew.evaluation.mteb_tasks import fetched_folder
from embrew.evaluation.task import MtebTask, Task
from embrew.files.names import check_file_name
from embrew.settings.validation import KeyPath, choose_from, explain
from embrew.settings.yaml_files import line_of, list_shipped, parse_yaml, read_shipped


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

    @field_validator("name", "split", "subset", "corpus_splits")
    @classmethod
    def _check_names(cls, names: str | list[str] | None) -> str | list[str] | None:
        for name in [names] if isinstance(names, str) else names or ():
            check_file_name(name, what="it")
        return names

    @property
    def source(self) -> HotpotQA | None:
        """The data set of the Hub."""
        if self.hub is None:
            return None
        split, others = self.split or HotpotQA.split, tuple(self.corpus_splits or ())
        return HotpotQA(self.hub, self.subset, split, others, self.revision)

    @property
    def folder(self) -> str | None:
        """Its data folder below that of the suite; None if mteb loads the data."""
        return self.data if self.source is None else self.source.folder


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
    suite, source, position_of = _parse(name_or_path)
    instructions: Mapping[str, str] = {}
    if suite.instructions is not None:
        tables = yaml.safe_load((files("embrew") / "evaluation" / "instructions.yaml").read_text(encoding="utf-8"))
        if suite.instructions not in tables:
            what = f"instructions={suite.instructions!r}; choose from {', '.join(tables)}"
            raise ValueError(f"{position_of(('instructions',))}{what}")
        instructions = tables[suite.instructions]
    if "{instruction}" not in suite.prompt:
        raise ValueError(f"{position_of(('prompt',))}prompt={suite.prompt!r} has no {{instruction}} to fill in")
    folders = {entry.folder for entry in suite.tasks if entry.folder is not None}
    needed = data is not None or folders or "EMBREW_DATA" in os.environ
    root = Path(expand("$EMBREW_DATA" if data is None else data)) if needed else Path()
    missing = sorted(folder for folder in folders if not (root / expand(folder)).exists())
    if missing:
        fetched = any(entry.hub is not None and entry.folder in missing for entry in suite.tasks)
        words = f"embrew data fetch {quote(str(name_or_path))} --to {quote(str(root))}"
        hint = f"; {words} fetches data sets of the Hub" if fetched else ""
        raise FileNotFoundError(f"{source}: {root} lacks {', '.join(missing)}{hint}")
    tasks: list[Task | MtebTask] = []
    for i, entry in enumerate(suite.tasks):
        try:
            if entry.folder is None:
                tasks.append(_mteb_task(entry, suite.prompt, instructions, root if needed else None))
            else:
                tasks += cells(_task(entry, suite.prompt, instructions, root / expand(entry.folder)))
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(f"{position_of(('tasks', i))}{error}") from None
    names = {task.name for task in tasks}
    for average, members in suite.averages.items():
        unknown = ", ".join(member for member in members if member not in names)
        if unknown or not members:
            raise ValueError(
                f"{position_of(('averages', average))}{unknown or 'nothing'} is not a task of the suite; "
                + choose_from(unknown, sorted(names))
            )
    return Suite(str(name_or_path), tuple(tasks), {name: tuple(members) for name, members in suite.averages.items()})


def read_tasks(
    suite: str | None, data: Sequence[str], *, split: str | None = None, kind: str | None = None
) -> tuple[tuple[Task | MtebTask, ...], Mapping[str, Sequence[str]]]:
    """Return the tasks of a suite, below `data` if it is given, and its averages; or the tasks of data folders.

    Raises:
        ValueError: a suite with several data folders, a split or a kind.
    """
    if suite is None:
        return tuple(find_task(folder, split=split, kind=kind) for folder in data), {}
    if len(data) > 1 or split or kind:
        raise ValueError("--suite defines tasks, splits and kinds; give it with at most one --data")
    read = read_suite(suite, data=data[0] if data else None)
    return read.tasks, read.averages


def read_averages(name_or_path: str | Path) -> dict[str, list[str]]:
    """Return the named averages of a suite; its data need not exist."""
    return _parse(name_or_path)[0].averages


def fetchable(name_or_path: str | Path) -> tuple[list[MtebTask], list[HotpotQA], list[str]]:
    """Return a suite's tasks of MTEB, its data sets of the Hub, and its data folders, which cannot be fetched."""
    suite, _, _ = _parse(name_or_path)
    tasks = [_mteb_task(entry, suite.prompt, {}, None) for entry in suite.tasks if entry.folder is None]
    sources = dict.fromkeys(entry.source for entry in suite.tasks if entry.source is not None)
    return tasks, list(sources), [entry.data for entry in suite.tasks if entry.data is not None]


def _parse(name_or_path: str | Path) -> tuple[SuiteFile, str, Callable[[KeyPath], str]]:
    """Return a suite's file, its source, and a function from a key to `SOURCE:LINE: ` for error messages."""
    text, source = read_shipped("suites", name_or_path, what="suite")
    values = parse_yaml(text, source=source)
    if not isinstance(values, dict):
        raise ValueError(f"{source}: a suite is a mapping with the keys {', '.join(SuiteFile.model_fields)}")

    def position_of(path: KeyPath) -> str:
        line = line_of(text, path)
        return f"{source}:{line}: " if line else f"{source}: "

    try:
        suite = SuiteFile.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain(error, SuiteFile, values, location=position_of)) from None
    if not suite.tasks:
        raise ValueError(f"{source}: tasks is empty; give at least one, e.g. tasks: [{{data: STSB}}]")
    return suite, source, position_of


def _task(entry: TaskEntry, prompt: str, instructions: Mapping[str, str], folder: Path) -> Task:
    if sum(source is not None for source in (entry.data, entry.mteb, entry.hub)) > 1:
        raise ValueError("data, mteb and hub exclude each other; give one of them")
    settings = dict(entry.model_extra or {})
    kind, split, name = entry.kind, entry.split, entry.name or Path(entry.hub or entry.data or "").name
    if entry.source is not None:
        if kind not in (None, RAG.name):
            raise ValueError(f"kind={kind!r}, but a data set of the Hub is evaluated as rag; leave kind out")
        kind, split = RAG.name, entry.source.split
    elif entry.subset or entry.revision or entry.corpus_splits:
        raise ValueError(
            "subset, revision and corpus_splits are for mteb and hub, not for data folders; leave them out"
        )
    instruction = entry.instruction or instructions.get(name)
    if instruction is not None:
        settings["instruction"] = prompt.replace("{instruction}", instruction)
    return find_task(folder, split=split, kind=kind, name=name, **settings)


def _mteb_task(entry: TaskEntry, prompt: str, instructions: Mapping[str, str], root: Path | None) -> MtebTask:
    if entry.mteb is None:
        raise ValueError("a task needs data: FOLDER or mteb: NAME (or hub: DATA SET)")
    ours = [key for key in ("kind", "revision", "corpus_splits") if getattr(entry, key) is not None]
    unknown = sorted([*(entry.model_extra or {}), *ours])
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} is not a setting of an mteb task; choose from name, split, subset, instruction"
        )
    instruction = entry.instruction or instructions.get(entry.mteb)
    instruction = None if instruction is None else prompt.replace("{instruction}", instruction)
    task = MtebTask(entry.name or entry.mteb, entry.mteb, entry.subset, entry.split, instruction)
    fetched = None if root is None else fetched_folder(root, task)
    return replace(task, data=fetched) if fetched is not None and fetched.is_dir() else task
