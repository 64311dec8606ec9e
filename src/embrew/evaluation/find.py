"""Find the task of a data folder: its kind (by its columns), its split, and the files its score depends on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from embrew.data.columns import required
from embrew.data.formats import read_file
from embrew.data.reading import (
    DEV_SPLITS,
    SPLITS,
    expand,
    find_file,
    is_beir,
    qrels_file,
    qrels_files,
    split_files,
    splits,
    stem,
)
from embrew.data.sets import fetch_hint
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.task import DevPart, Task, TaskKind


def find_task(
    path: str | Path,
    *,
    split: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    part: DevPart | None = None,
    **settings: Any,
) -> Task:
    """Return the task of a folder, or of one file of rows.

    A folder with a corpus, queries and relevance judgements is retrieval, or by `kind` retrieval-augmented answers
    (`rag`), whose setting `answers` names a file relative to the folder, or answers to be generated (`generation`).

    Args:
        split: Default: `test` if there is one, else `dev` (or `validation`, `valid`).
        kind: Name of a kind (a key of `KINDS`); default: by the columns.
        name: Default: the folder's name.
        part: Dev rows that are split off this split.
        settings: Settings of the kind.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind={kind!r}; choose from {', '.join(KINDS)}")
    folder = Path(expand(path))
    if not folder.exists():
        raise FileNotFoundError(f"no data folder {folder}{fetch_hint(folder)}")
    if folder.is_file():
        task_kind, split, files = KINDS[kind] if kind else _recognise(folder, folder), split or "test", [folder]
        name = name or stem(folder)
        if task_kind.train:
            raise ValueError(f"{folder}: {task_kind.name} needs a folder with a train and a test split, not one file")
    elif is_beir(folder):
        task_kind, split = _corpus_kind(folder, kind), split or _default_split(folder, sorted(qrels_files(folder)))
        corpus = [find_file(folder, "corpus"), find_file(folder, "queries"), qrels_file(folder, split)]
        files = [file for file in corpus if file]
        if settings.get("answers") is not None:
            files.append(_answers_file(folder, settings["answers"]))
    else:
        if kind is not None and KINDS[kind].rows is None:
            raise FileNotFoundError(f"{folder} lacks corpus.jsonl or queries.jsonl (gz or not), which {kind} needs")
        split = split or _default_split(folder, splits(folder))
        files = split_files(folder, split)
        task_kind = KINDS[kind] if kind else _recognise(files[0], folder)
        files = [*split_files(folder, "train"), *files] if task_kind.train else files
    if name is None:
        resolved = folder.resolve()
        name = f"{resolved.parent.name}-{folder.name}" if folder.name in SPLITS else resolved.name
    unknown = sorted(set(settings) - set(task_kind.settings))
    if unknown:
        raise ValueError(
            f"task {name}: {', '.join(unknown)} is not a setting of {task_kind.name}; choose from "
            + ", ".join(task_kind.settings)
        )
    return Task(name, task_kind.name, split, folder, tuple(files), settings, part)


def _corpus_kind(folder: Path, kind: str | None) -> TaskKind:
    """Return the kind of a folder with a corpus: by default the first that reads one."""
    readers = [reader for reader in KINDS.values() if reader.corpus]
    task_kind = KINDS[kind] if kind else readers[0]
    if not task_kind.corpus:
        *others, last = (reader.name for reader in readers)
        raise ValueError(
            f"{folder} holds a corpus and queries: kind={kind!r} cannot read it; use {', '.join(others)} or {last}"
        )
    return task_kind


def cells(task: Task) -> list[Task]:
    """Return one task per combination of the listed numbers of its kind's grid, named `NAME-l6-d128`.

    Raises:
        ValueError: a value that is not a number, is below 1, or is listed twice.
    """
    tasks = [task]
    for name in KINDS[task.kind].grid:
        value = task.settings.get(name)
        if value is None:
            continue
        numbers = list(value) if isinstance(value, list | tuple) else [value]
        wrong = any(type(number) is not int or number < 1 for number in numbers)
        if wrong or not numbers or len(set(numbers)) < len(numbers):
            raise ValueError(f"task {task.name}: {name}={value!r}; give numbers above 0, each once, e.g. [64, 128]")
        if isinstance(value, list | tuple):
            tasks = [
                replace(cell, name=f"{cell.name}-{name[0]}{number}", settings={**cell.settings, name: number})
                for cell in tasks
                for number in numbers
            ]
    return tasks


def _answers_file(folder: Path, answers: Any) -> Path:
    if not isinstance(answers, str):
        raise ValueError(f"answers={answers!r}; give a file, relative to {folder}")
    file = folder / expand(answers)
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}, which answers={answers!r} names; it is relative to the data folder")
    return file


def _default_split(folder: Path, names: list[str]) -> str:
    split = next((split for split in ("test", *DEV_SPLITS) if split in names), None)
    if split is None:
        raise ValueError(f"{folder} has neither a test nor a dev split; choose split from {', '.join(names) or 'none'}")
    return split


def _recognise(file: Path, folder: Path) -> TaskKind:
    """Return the kind whose columns a file's first row has."""
    record = next(read_file(file), None)
    if record is None:
        raise ValueError(f"{file} holds no rows")
    has_train = folder.is_dir() and "train" in splits(folder)
    for kind in KINDS.values():
        if kind.matches(record.values) and (has_train or not kind.train):
            return kind
    with_rows = [(kind.name, required(kind.rows)) for kind in KINDS.values() if kind.rows and not kind.corpus]
    kinds = "; ".join(f"{name} ({', '.join(sorted(needed))})" for name, needed in with_rows)
    columns = ", ".join(sorted(record.values))
    raise ValueError(
        f"{folder}: no kind of task has rows with the columns {columns}; known are {kinds}, and "
        "retrieval (a folder with corpus, queries, qrels)"
    )
