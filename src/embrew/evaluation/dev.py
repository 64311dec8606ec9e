"""The dev and guard sets of a recipe: names, scores of an encoder, and the texts they consist of."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from embrew import evaluation
from embrew.data.beir import is_beir, qrels_files, read_beir
from embrew.data.columns import Kind as RowKind
from embrew.data.datasets import load
from embrew.data.reading import expand, splits, stem
from embrew.evaluation.report import METRICS
from embrew.evaluation.tasks import Task, find_task
from embrew.protocol import GUARD, TextEncoder
from embrew.recipe import Recipe

RESERVED = ("dev", "guard")
ROWS: Mapping[str, tuple[RowKind, tuple[str, ...]]] = {
    "sts": ("scored", ("sentence1", "sentence2")),
    "pair_classification": ("labelled_pairs", ("sentence1", "sentence2")),
    "classification": ("labelled", ("text",)),
    "clustering": ("labelled", ("text",)),
    "summarization": ("summaries", ("text", "human_summaries", "machine_summaries")),
}


@dataclass(frozen=True)
class DevSets:
    """Scores an encoder on dev and guard sets; made by `dev_sets`."""

    dev: tuple[Task, ...]
    guard: tuple[Task, ...] = ()
    batch_tokens: int = 8192

    @property
    def metrics(self) -> list[str]:
        """The scores that a best step can be chosen by."""
        return ["dev", *(task.name for task in self.dev)]

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """Kind, split and metric of each set, by the name of its score."""
        named = [*((task.name, task) for task in self.dev), *((GUARD + task.name, task) for task in self.guard)]
        return {name: {"kind": task.kind, "split": task.split, "metric": METRICS[task.kind]} for name, task in named}

    def __call__(self, encoder: TextEncoder) -> dict[str, float]:
        """`dev`, the mean of the dev sets, and each of them; with guard sets, `guard` and `guard/NAME`."""
        results = evaluation.evaluate(encoder, [*self.dev, *self.guard], batch_tokens=self.batch_tokens)
        found = [result.main_score for result in results]
        dev, guard = found[: len(self.dev)], found[len(self.dev) :]
        scores = {"dev": statistics.fmean(dev)}
        scores |= {task.name: score for task, score in zip(self.dev, dev, strict=True)}
        if guard:
            scores["guard"] = statistics.fmean(guard)
            scores |= {GUARD + task.name: score for task, score in zip(self.guard, guard, strict=True)}
        return scores

    def texts(self) -> dict[str, Iterator[str]]:
        """The texts of each set, read when asked for; queries and documents apart."""
        return dict(chain.from_iterable(_texts(task) for task in (*self.dev, *self.guard)))


def dev_sets(
    dev: Sequence[str | Path], guard: Sequence[str | Path] = (), *, metric: str = "dev", batch_tokens: int = 8192
) -> DevSets:
    """The sets of these folders and files, looked at before any model is opened.

    Since a model may be chosen by them, of a folder that has both a dev and a test split the dev split is taken.

    Raises:
        FileNotFoundError: one is not there.
        ValueError: two sets have one name; `metric` is neither `dev` nor a dev set's name.
    """
    found = DevSets(tuple(map(_task, dev)), tuple(map(_task, guard)), batch_tokens)
    names = [task.name for task in (*found.dev, *found.guard)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two dev or guard sets are called {name}; rename a folder, or leave one out")
    if metric not in found.metrics:
        raise ValueError(f"evaluation.metric={metric!r} is no score; choose from {', '.join(found.metrics)}")
    return found


def dev_sets_of(recipe: Recipe) -> DevSets | None:
    """The sets that a recipe's `evaluation` names, or None where it has none; errors as `dev_sets`."""
    found = recipe.evaluation
    if found is None:
        return None
    return dev_sets(found.dev, found.guard, metric=found.metric, batch_tokens=found.batch_tokens)


def _task(path: str | Path) -> Task:
    place = Path(expand(path))
    name = f"{place.resolve().parent.name}-{stem(place)}" if place.is_file() and stem(place) in RESERVED else None
    found = find_task(path, name=name)
    if place.is_dir():
        has = list(qrels_files(place)) if is_beir(place) else splits(place)
        split = next((split for split in ("dev", "validation", "valid") if split in has), found.split)
        found = find_task(path, split=split, name=name)
    return found


def _texts(task: Task) -> Iterator[tuple[str, Iterator[str]]]:
    if task.kind == "retrieval":
        yield f"{task.name} queries", _retrieval_texts(task, "queries")
        yield f"{task.name} documents", _retrieval_texts(task, "documents")
    elif task.kind == "reranking":
        yield f"{task.name} queries", _row_texts(task, "candidates", ("query",))
        yield f"{task.name} documents", _row_texts(task, "candidates", ("positive", "negative"))
    else:
        yield task.name, _row_texts(task, *ROWS[task.kind])


def _retrieval_texts(task: Task, side: str) -> Iterator[str]:
    data = read_beir(task.path, task.split)
    if side == "queries":
        yield from data.queries.values()
        return
    for document in data.corpus:
        yield document.content
        if document.title:
            yield document.text


def _row_texts(task: Task, kind: RowKind, columns: tuple[str, ...]) -> Iterator[str]:
    place, split = (task.path, task.split) if task.path.is_dir() else (task.path, "train")
    for row in load(place, kind=kind, split=split).select_columns(list(columns)):
        values: Mapping[str, Any] = row
        for value in values.values():
            yield from value if isinstance(value, list) else [value]
