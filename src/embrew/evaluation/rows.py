"""The rows and texts of a task; among them dev rows that are split off a folder's training rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.data.beir import RetrievalData, read_beir
from embrew.data.datasets import load
from embrew.data.fingerprints import normalised
from embrew.data.reading import is_beir, qrels_files, splits
from embrew.evaluation.task import Columns, DevPart, Task, TaskColumns, TaskKind

if TYPE_CHECKING:
    from datasets import Dataset


def split_names(folder: Path) -> list[str]:
    """Return the splits of a data folder: of its rows, or of its relevance judgements."""
    return sorted(qrels_files(folder)) if is_beir(folder) else splits(folder)


def task_rows(task: Task, kind: TaskKind, columns: Columns = None) -> Dataset:
    """Return the rows that a task is evaluated on."""
    if task.part is None and not kind.train:
        return load(list(task.files), kind=kind.layout, columns=columns)
    rows = load(task.path, kind=kind.layout, split=task.split, columns=columns)
    return rows if task.part is None else rows.select(_split_off_rows(task, task.part, kind, rows))


def training_rows(task: Task, kind: TaskKind, columns: Columns = None) -> Dataset:
    """Return the training rows of a task's folder without those that it is evaluated on."""
    rows = load(task.path, kind=kind.layout, split="train", columns=columns)
    if task.part is None:
        return rows
    chosen = set(_split_off_rows(task, task.part, kind, rows))
    return rows.select([i for i in range(len(rows)) if i not in chosen])


def read_rows(task: Task, kind: TaskKind, columns: Columns = None) -> TaskColumns:
    """Return the columns of the rows that a task is evaluated on; those of training rows have the prefix `train_`."""
    rows = task_rows(task, kind, columns)
    read = {name: list(rows[name]) for name in rows.column_names}
    if kind.train:
        training = training_rows(task, kind, columns)
        read |= {f"train_{name}": list(training[name]) for name in training.column_names}
    return read


def task_retrieval(task: Task) -> RetrievalData:
    """Return the corpus, and the queries that a retrieval task is evaluated on."""
    data = read_beir(task.path, task.split)
    if task.part is None:
        return data
    names = list(data.queries)
    tested = read_beir(task.path, "test").queries.values() if "test" in split_names(task.path) else ()
    chosen = [names[i] for i in _split_off(task, task.part, [[data.queries[name] for name in names]], tested)]
    return replace(
        data, queries={name: data.queries[name] for name in chosen}, qrels={name: data.qrels[name] for name in chosen}
    )


def texts_of(rows: Dataset, columns: Sequence[str]) -> Iterator[str]:
    """Return the texts of some columns, row by row; those of lists one by one."""
    for row in rows.select_columns(list(columns)):
        values: Mapping[str, Any] = row
        for value in values.values():
            yield from value if isinstance(value, list) else [value]


def _split_off_rows(task: Task, part: DevPart, kind: TaskKind, rows: Dataset) -> list[int]:
    tested: Iterable[str] = ()
    if "test" in split_names(task.path):
        tested = texts_of(load(task.path, kind=kind.layout, split="test"), (*kind.about, *kind.other))
    return _split_off(task, part, [list(rows[name]) for name in kind.about], tested)


def _split_off(task: Task, part: DevPart, columns: Sequence[Sequence[Any]], tested: Iterable[str]) -> list[int]:
    """Return the indices of the rows that are split off: by hashes of the first text, so that its rows stay together.

    Args:
        task: Names the folder in errors.
        part: How many rows, and the seed.
        columns: Texts of the rows, by column.
        tested: Texts of the test split, which none of the rows may hold.
    """
    excluded = {normalised(text) for text in (*part.left_out, *tested)}
    texts = [normalised(text) for text in columns[0]]
    free = np.ones(len(texts), dtype=bool)
    for column in columns:
        for i, value in enumerate(column):
            free[i] &= not any(normalised(text) in excluded for text in (value if isinstance(value, list) else [value]))
    seed = f"{part.seed}\n"
    order = sorted(set(texts), key=lambda text: hashlib.sha256((seed + text).encode()).digest())
    indices: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        indices.setdefault(text, []).append(i)
    chosen: list[int] = []
    for text in order:
        if len(chosen) < part.rows and all(free[i] for i in indices[text]):
            chosen += indices[text]
    if len(chosen) < part.rows or len(chosen) == len(texts):
        raise ValueError(
            f"{task.path}: rows={part.rows} of its {len(texts)} training rows, of which {int(free.sum())} share no "
            "text with its test split; ask for fewer"
        )
    return sorted(chosen)
