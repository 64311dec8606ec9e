"""Queries won and lost: queries whose rank changed most, pairs that moved most, and confused classes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from embrew.comparison import TaskScores
from embrew.comparison.changes import changed_queries, confused_classes, moved_pairs, ranked
from embrew.evaluation.report import Result
from embrew.evaluation.task import GridCache, Task
from embrew.report.changed_examples import SHOWN, Changed, chosen, page_data
from embrew.report.example_texts import pair_texts, ranked_texts
from embrew.report.section import Figure, Section
from embrew.report.subject import Subject

ORDER = {"queries": 0, "pairs": 1, "classes": 2}
KINDS = ("retrieval", "reranking", "rag", "sts", "pair_classification", "classification")


def section(subject: Subject) -> Section | None:
    """Return the section; None if no task has queries, pairs or classes, or there is one model only."""
    comparison = subject.comparison
    tasks = [task for task in comparison.tasks if task.first.kind in KINDS]
    found = [(task, _changed(task)) for task in tasks]
    changed = sorted(((task, one) for task, one in found if one is not None), key=lambda pair: ORDER[pair[1].kind])
    if not tasks or len(comparison.models) == 1:
        return None
    names = [model.name for model in comparison.models]
    read = []
    for task, one in changed:
        data = subject.data.get((task.first.task, task.first.split))
        read.append(one if data is None else _with_texts(one, data, subject.cache))
    page = page_data(read, names)
    values = {
        "data": page,
        "base": names[0],
        "shown": SHOWN,
        "has_seeds": any(len(model.seeds) > 1 for model in comparison.models),
        "without_ids": [task.label for task, one in found if one is None],
        "without_texts": [
            one.label + (f" ({subject.without_data[key]})" if key in subject.without_data else "")
            for task, one in changed
            if one.kind != "classes" and (key := (task.first.task, task.first.split)) not in subject.data
        ],
    }
    document = {
        "limit": page["limit"],
        "without_ids": values["without_ids"],
        "tasks": [_entry(one, names[1:], page["limit"]) for one in read],
    }
    return Section("queries", "Queries won and lost", values, document, tuple(_figures(read, names[1:])))


def _changed(task: TaskScores) -> Changed | None:
    """Return what changed between the first seed of the base and that of each other model; None without examples."""
    base, *others = (results[0] for results in task.results)
    if base.kind in ("sts", "pair_classification"):
        if not task.is_tested:
            return None
        moved = [moved_pairs(base, other) for other in others]
        return Changed(task.label, "pairs", len(base.examples["gold"]), moved, scored=base.kind == "sts")
    if base.kind == "classification":
        if not all(_names_classes(result) for result in (base, *others)):
            return None
        confused = [confused_classes(base, other) for other in others]
        return Changed(task.label, "classes", len(base.examples["gold"]), confused)
    one, *rest = (ranked(result) for result in (base, *others))
    known = [each for each in rest if each is not None]
    if one is None or len(known) < len(rest):
        return None
    by_model = [changed_queries(one, each) for each in known]
    return Changed(task.label, "queries", len(one.queries), by_model, depth=one.depth)


def _names_classes(result: Result) -> bool:
    return {"gold", "predicted"} <= result.examples.keys()


def _with_texts(changed: Changed, task: Task, cache: GridCache) -> Changed:
    if changed.kind == "queries":
        return replace(changed, texts=ranked_texts(task, cache))
    return replace(changed, pairs=pair_texts(task)) if changed.kind == "pairs" else changed


def _entry(changed: Changed, models: Sequence[str], limit: int) -> dict[str, Any]:
    """Return a task's entry in the JSON file: the same changes as on the page, with ids instead of texts."""
    shown = [
        {
            "model": model,
            "changed": len(changes),
            "won": sum(one.is_won for one in changes),
            "examples": [one._asdict() for one in chosen(changes, limit)],
        }
        for model, changes in zip(models, changed.by_model, strict=True)
    ]
    return {"task": changed.label, "examples": changed.total, "models": shown}


def _figures(tasks: Sequence[Changed], models: Sequence[str]) -> Iterator[Figure]:
    for task in tasks:
        for model, changes in zip(models, task.by_model, strict=True):
            won = sum(one.is_won for one in changes)
            what = {"queries": "queries", "pairs": "pairs", "classes": "pairs of classes"}[task.kind]
            yield Figure("queries", model, f"{what} won", won, task.label)
            yield Figure("queries", model, f"{what} lost", len(changes) - won, task.label)
