"""The texts of tasks, and the demonstrations and training rows that hold them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from embrew.data.beir import read_beir
from embrew.data.fingerprints import TEXTS, fingerprints, flatten, normalised
from embrew.data.reading import is_beir
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.rows import task_retrieval, task_rows, texts_of
from embrew.evaluation.task import Task
from embrew.settings.validation import shortened

if TYPE_CHECKING:
    from datasets import Dataset

TRIAL_CONTEXT = "being-chosen"  # temporary context name while a number of demonstrations is chosen; already checked
EXAMPLES, WIDTH, BLOCK = 5, 120, 10_000


def task_texts(task: Task) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield names and lazily read texts; queries and documents are separate entries."""
    kind = KINDS[task.kind]
    if is_beir(task.path):
        yield f"{task.name} queries", iter(task_retrieval(task).queries.values())
        yield f"{task.name} documents", _corpus_texts(task)
    elif kind.documents:
        yield f"{task.name} queries", _texts(task, (*kind.about, *kind.other))
        yield f"{task.name} documents", _texts(task, kind.documents)
    else:
        yield task.name, _texts(task, (*kind.about, *kind.other))


def check_demonstrations(demonstrations: Sequence[str], tasks: Sequence[Task]) -> None:
    """Raise if the query of a demonstration is a text of one of the tasks.

    Raises:
        ValueError: the message gives their number, the task and one of them.
    """
    originals = {normalised(text): text for text in demonstrations}
    for task in tasks:
        if not originals:
            continue
        both = sorted(originals.keys() & {normalised(text) for text in next(task_texts(task))[1]})
        if both:
            raise ValueError(
                f"{len(both)} of {len(originals)} demonstrations are rows of {task.name} {task.split_label}, for "
                f"example {originals[both[0]]!r}; take demonstrations from other rows"
            )


def reserved_texts(task: Task) -> list[str]:
    """Return texts of dev rows that are split off training rows, which may not be trained on; of other tasks, none."""
    if task.part is None:
        return []
    if is_beir(task.path):
        return list(task_retrieval(task).queries.values())
    return list(_texts(task, KINDS[task.kind].about))


def relevant_texts(task: Task) -> Iterator[str]:
    """Yield the texts of the documents of a BEIR folder that answer a query of the task."""
    grades = task_retrieval(task).qrels.values()
    yield from _corpus_texts(
        task, {name for grades_of_query in grades for name, grade in grades_of_query.items() if grade > 0}
    )


def _corpus_texts(task: Task, only: Collection[str] | None = None) -> Iterator[str]:
    for document in read_beir(task.path, task.split).corpus:
        if only is None or document.id in only:
            yield document.content
            if document.title:
                yield document.text


def _texts(task: Task, columns: tuple[str, ...]) -> Iterator[str]:
    yield from texts_of(task_rows(task, KINDS[task.kind]), columns)


class Overlap(TypedDict):
    """Training rows that contain a text of one evaluation set: number, share, number by column, and examples."""

    rows: int
    share: float
    columns: dict[str, int]
    examples: list[str]


def hash_texts(sets: Mapping[str, Iterable[str]]) -> dict[str, np.ndarray]:
    """Return sorted hashes of the texts of each evaluation set; empty texts are left out."""
    return {name: np.unique(fingerprints(text for text in texts if text.strip())) for name, texts in sets.items()}


def count_overlaps(rows: Dataset, sets: Mapping[str, np.ndarray]) -> dict[str, Overlap]:
    """Count the training rows that contain a text of each evaluation set, up to case, white space and Unicode form.

    Args:
        rows: canonical rows; one matching text of a list is enough.
        sets: result of `hash_texts`.
    """
    columns = [column for column in TEXTS if column in rows.column_names]
    overlaps: dict[str, Overlap] = {
        name: {"rows": 0, "share": 0.0, "columns": dict.fromkeys(columns, 0), "examples": []} for name in sets
    }
    seen: dict[str, set[int]] = {name: set() for name in sets}
    for block in rows.select_columns(columns).iter(BLOCK):
        size = len(block[columns[0]])
        hits = {name: np.zeros(size, dtype=bool) for name in sets}
        for column in columns:
            row_indices, texts = flatten(block[column])
            hashes = fingerprints(texts)
            for name, reserved in sets.items():
                matches = np.flatnonzero(np.isin(hashes, reserved))
                matching_rows = np.unique(row_indices[matches])
                overlaps[name]["columns"][column] += len(matching_rows)
                hits[name][matching_rows] = True
                for match in matches:
                    if len(overlaps[name]["examples"]) < EXAMPLES and int(hashes[match]) not in seen[name]:
                        seen[name].add(int(hashes[match]))
                        overlaps[name]["examples"].append(shortened(" ".join(texts[match].split()), WIDTH))
        for name in sets:
            overlaps[name]["rows"] += int(hits[name].sum())
    for entry in overlaps.values():
        entry["share"] = entry["rows"] / len(rows)
    return overlaps


def overlap_lines(data: str, rows: int, overlaps: Mapping[str, Overlap]) -> list[str]:
    """Return one line per evaluation set that shares texts with a training set; one line if none does."""
    lines = []
    for name, entry in overlaps.items():
        if entry["rows"]:
            columns = ", ".join(f"{column} {count:,}" for column, count in entry["columns"].items() if count)
            lines.append(
                f"{entry['rows']:,} of {rows:,} rows of {data} ({entry['share']:.2%}) hold a text of {name} "
                f"({columns}), for example {entry['examples'][0]!r}"
            )
    return lines or [f"no row of {data} ({rows:,}) holds a text of {', '.join(overlaps)}"]
