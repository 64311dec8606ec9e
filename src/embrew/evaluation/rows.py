"""The rows of a task, and its texts; among them dev rows that are split off a folder's training rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.data.beir import RetrievalData, is_beir, qrels_files, read_beir
from embrew.data.columns import Kind as RowKind
from embrew.data.datasets import load
from embrew.data.overlap import normalised
from embrew.data.reading import splits
from embrew.evaluation.tasks import Kind, Part, Task, find_task

if TYPE_CHECKING:
    from datasets import Dataset

# What the rows of a kind are, and their columns of texts; the first ones are what a row is about.
ROWS: Mapping[Kind, tuple[RowKind, tuple[str, ...]]] = {
    "sts": ("scored", ("sentence1", "sentence2")),
    "pair_classification": ("labelled_pairs", ("sentence1", "sentence2")),
    "classification": ("labelled", ("text",)),
    "clustering": ("labelled", ("text",)),
    "reranking": ("candidates", ("query", "positive", "negative")),
    "summarization": ("summaries", ("text", "human_summaries", "machine_summaries")),
}
TRIED = "being-chosen"  # the name of a context whose number of demonstrations is being chosen, and has been checked
ABOUT = ("sentence1", "sentence2", "text", "query")


def split_names(folder: Path) -> list[str]:
    """The splits of a data folder: of its rows, or of its judgements."""
    return sorted(qrels_files(folder)) if is_beir(folder) else splits(folder)


def task_rows(task: Task, kind: RowKind, columns: Mapping[str, str] | None = None) -> Dataset:
    """The rows that a task is evaluated on."""
    if task.part is None:
        return load(list(task.files), kind=kind, columns=columns)
    rows = load(task.path, kind=kind, split=task.split, columns=columns)
    return rows.select(_chosen(task, task.part, _columns_of(rows, kind)))


def training_rows(task: Task, columns: Mapping[str, str] | None = None) -> Dataset:
    """The labelled training rows beside a classification task, without those that it is judged on."""
    rows = load(task.path, kind="labelled", split="train", columns=columns)
    if task.part is None:
        return rows
    chosen = set(_chosen(task, task.part, [list(rows["text"])]))
    return rows.select([i for i in range(len(rows)) if i not in chosen])


def task_retrieval(task: Task) -> RetrievalData:
    """The corpus, and the queries that a retrieval task is judged on."""
    data = read_beir(task.path, task.split)
    if task.part is None:
        return data
    names = list(data.queries)
    kept = [names[i] for i in _chosen(task, task.part, [[data.queries[name] for name in names]])]
    return replace(
        data, queries={name: data.queries[name] for name in kept}, qrels={name: data.qrels[name] for name in kept}
    )


def task_texts(task: Task) -> Iterator[tuple[str, Iterator[str]]]:
    """The texts that a task is evaluated on, read when asked for; queries and documents apart."""
    if task.kind == "retrieval":
        yield f"{task.name} queries", iter(task_retrieval(task).queries.values())
        yield f"{task.name} documents", _document_texts(task)
    elif task.kind == "reranking":
        yield f"{task.name} queries", _row_texts(task, ("query",))
        yield f"{task.name} documents", _row_texts(task, ("positive", "negative"))
    else:
        yield task.name, _row_texts(task, ROWS[task.kind][1])


def asked_texts(task: Task) -> list[str]:
    """The texts that are a task's own: all but the documents that its queries are searched in."""
    return [text for name, texts in task_texts(task) if not name.endswith(" documents") for text in texts]


def check_apart(demonstrations: Sequence[str], tasks: Sequence[Task]) -> None:
    """Raise where the query of a demonstration is one of the texts that an encoder is judged on.

    Raises:
        ValueError: how many are, of which task, and one of them.
    """
    shown = {normalised(text): text for text in demonstrations}
    for task in tasks:
        if not shown or not (task.kind == "retrieval" or task.kind in ROWS):
            continue
        both = sorted(shown.keys() & {normalised(text) for text in asked_texts(task)})
        if both:
            raise ValueError(
                f"{len(both)} of {len(shown)} demonstrations are rows of {task.name} {task.shown_split}, for example "
                f"{shown[both[0]]!r}; take demonstrations from other rows"
            )


def reserved_texts(task: Task) -> list[str]:
    """Texts of the dev rows that are split off training rows, which may not be trained on; else none."""
    if task.part is None:
        return []
    if task.kind == "retrieval":
        return list(task_retrieval(task).queries.values())
    return list(_row_texts(task, tuple(column for column in ROWS[task.kind][1] if column in ABOUT)))


def _chosen(task: Task, part: Part, columns: Sequence[Sequence[Any]]) -> list[int]:
    """Places of the rows that are split off: by hashes of their first text, so that a text's rows stay together."""
    excluded = {normalised(text) for text in (*part.left_out, *_test_texts(task))}
    texts = [normalised(text) for text in columns[0]]
    free = np.ones(len(texts), dtype=bool)
    for column in columns:
        for i, value in enumerate(column):
            free[i] &= not any(normalised(text) in excluded for text in (value if isinstance(value, list) else [value]))
    seed = f"{part.seed}\n"
    order = sorted(set(texts), key=lambda text: hashlib.sha256((seed + text).encode()).digest())
    place: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        place.setdefault(text, []).append(i)
    chosen: list[int] = []
    for text in order:
        if len(chosen) < part.rows and all(free[i] for i in place[text]):
            chosen += place[text]
    if len(chosen) < part.rows or len(chosen) == len(texts):
        raise ValueError(
            f"{task.path}: rows={part.rows} of its {len(texts)} training rows, of which {int(free.sum())} share no "
            "text with its test split; ask for fewer"
        )
    return sorted(chosen)


def _test_texts(task: Task) -> list[str]:
    if "test" not in split_names(task.path):
        return []
    return asked_texts(find_task(task.path, split="test", kind=task.kind, name=task.name))


def _columns_of(rows: Dataset, kind: RowKind) -> list[list[Any]]:
    names = next(columns for name, columns in ROWS.values() if name == kind)
    return [list(rows[name]) for name in names if name in ABOUT]


def _document_texts(task: Task) -> Iterator[str]:
    for document in read_beir(task.path, task.split).corpus:
        yield document.content
        if document.title:
            yield document.text


def _row_texts(task: Task, columns: tuple[str, ...]) -> Iterator[str]:
    kind = ROWS[task.kind][0]
    if task.part is None and task.path.is_dir():
        rows = load(task.path, kind=kind, split=task.split)
    else:
        rows = task_rows(task, kind)
    for row in rows.select_columns(list(columns)):
        values: Mapping[str, Any] = row
        for value in values.values():
            yield from value if isinstance(value, list) else [value]
