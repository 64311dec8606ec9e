"""Find the task of a data folder: its kind (by its columns), its split, and the files its score depends on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.task import Part, Task, TaskKind


def find_task(
    path: str | Path,
    *,
    split: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    part: Part | None = None,
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
    """
    named = None if kind is None else kind_named(kind)
    folder = Path(expand(path))
    if not folder.exists():
        raise FileNotFoundError(f"no data folder {folder}")
    if folder.is_file():
        found = named or _recognise(folder, folder)
        if found.train:
            raise ValueError(f"{folder}: {found.name} needs a folder with a train and a test split, not one file")
        return Task(name or stem(folder), found.name, split or "test", folder, (folder,), settings)
    name = name or (f"{folder.resolve().parent.name}-{folder.name}" if folder.name in SPLITS else folder.resolve().name)
    if is_beir(folder):
        readers = [one for one in KINDS.values() if one.corpus]
        found = named or readers[0]
        if not found.corpus:
            *most, last = (one.name for one in readers)
            raise ValueError(
                f"{folder} holds a corpus and queries: kind={kind!r} cannot read it; use {', '.join(most)} or {last}"
            )
        split = split or _default_split(folder, sorted(qrels_files(folder)))
        files = [find_file(folder, "corpus"), find_file(folder, "queries"), qrels_file(folder, split)]
        files += _named_files(folder, found, settings)
        return Task(name, found.name, split, folder, tuple(file for file in files if file), settings, part)
    if named is not None and named.rows is None:
        raise FileNotFoundError(f"{folder} lacks corpus.jsonl or queries.jsonl (gz or not), which {named.name} needs")
    split = split or _default_split(folder, splits(folder))
    paths = split_files(folder, split)
    found = named or _recognise(paths[0], folder)
    if found.train:
        paths = [*split_files(folder, "train"), *paths]
    return Task(name, found.name, split, folder, tuple(paths), settings, part)


def kind_named(name: str) -> TaskKind:
    """Return the kind of this name."""
    if name not in KINDS:
        raise ValueError(f"kind={name!r}; choose from {', '.join(KINDS)}")
    return KINDS[name]


def _named_files(folder: Path, kind: TaskKind, settings: Mapping[str, Any]) -> list[Path]:
    """Return the files that settings name."""
    files = []
    for name in kind.file_settings:
        given = settings.get(name)
        if given is None:
            continue
        if not isinstance(given, str):
            raise ValueError(f"{name}={given!r}; give a file, relative to {folder}")
        file = folder / expand(given)
        if not file.is_file():
            raise FileNotFoundError(f"no file {file}, which {name}={given!r} names; it is relative to the data folder")
        files.append(file)
    return files


def _default_split(folder: Path, names: list[str]) -> str:
    for split in ("test", *DEV_SPLITS):
        if split in names:
            return split
    raise ValueError(f"{folder} has neither a test nor a dev split; choose split from {', '.join(names) or 'none'}")


def _recognise(file: Path, folder: Path) -> TaskKind:
    """Return the kind whose columns a file's first row has."""
    record = next(read_file(file), None)
    if record is None:
        raise ValueError(f"{file} holds no rows")
    has_train = folder.is_dir() and "train" in splits(folder)
    for kind in KINDS.values():
        if kind.matches(record.values) and (has_train or not kind.train):
            return kind
    known = "; ".join(f"{kind.name} ({', '.join(sorted(kind.columns))})" for kind in KINDS.values() if kind.columns)
    columns = ", ".join(sorted(record.values))
    raise ValueError(
        f"{folder}: no kind of task has rows with the columns {columns}; known are {known}, and "
        "retrieval (a folder with corpus, queries, qrels)"
    )
