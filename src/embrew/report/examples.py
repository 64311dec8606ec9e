"""Queries won and lost: queries whose rank changed most, pairs that moved most, and confused classes, with texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from embrew.comparison import TaskScores
from embrew.comparison.changes import changed_queries, confused_classes, moved_pairs, ranked
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.reranking import candidate_names
from embrew.evaluation.rows import task_retrieval, task_rows
from embrew.evaluation.task import Task
from embrew.report.section import Figure, Section, Subject

LISTED = 200  # changes of a task and model
IN_ALL = 1000  # changes on the page
DOCUMENTS = 5  # of a query and model
NAME_LENGTH = 100  # characters of an id or a class
TEXT_LENGTH = 500  # characters of a text
WITH_EXAMPLES = ("retrieval", "reranking", "rag", "sts", "pair_classification", "classification")
COUNTED = {"queries": "queries", "pairs": "pairs", "classes": "pairs of classes"}


@dataclass(frozen=True)
class TaskChanges:
    """What changed on a task.

    Attributes:
        task: The task.
        kind: What its examples are.
        total: Number of examples.
        by_model: Changes from the base, the largest first, for each other model.
        depth: Largest known rank of queries; None if all are known.
    """

    task: TaskScores
    kind: Literal["queries", "pairs", "classes"]
    total: int
    by_model: Sequence[Sequence[Any]]
    depth: int | None = None


class PageTexts:
    """Names and texts of the page by number, each once: a text is None if it is not known, and truncated if long."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._numbers: dict[tuple[str, str | None], int] = {}

    def number(self, name: str, text: str | None) -> int:
        """Return the number of a text."""
        if (name, text) not in self._numbers:
            self._numbers[name, text] = len(self.rows)
            is_long = text is not None and len(text) > TEXT_LENGTH
            self.rows.append([_shortened(name), text[:TEXT_LENGTH], len(text)] if is_long else [_shortened(name), text])  # type: ignore[index,arg-type]
        return self._numbers[name, text]


class QueryTexts:
    """Texts of a task with queries, and what is relevant; nothing is known without the task's data."""

    def __init__(self, task: Task | None) -> None:
        self.queries: dict[str, str] = {}
        self.relevant: dict[str, list[str]] = {}  # ids of a query's relevant documents, the highest grade first
        self._documents: dict[str, str] = {}
        self._candidates: dict[str, dict[str, str]] = {}  # of reranking: documents are named within a query
        if task is not None and task.kind == "reranking":
            for number, row in enumerate(_rows(task), start=1):
                texts = {name: text for text, name in candidate_names(row["positive"], row["negative"]).items()}
                self.queries[str(number)], self._candidates[str(number)] = str(row["query"]), texts
                self.relevant[str(number)] = [name for name in texts if name.startswith("positive ")]
        elif task is not None:
            data = task_retrieval(task)
            self.queries = dict(data.queries)
            self._documents = {one.id: one.content for one in data.corpus}
            # Retrieval-augmented answers are right if the document holds an answer: judgements do not count.
            for query, grades in data.qrels.items() if task.kind == "retrieval" else ():
                there = {name: grade for name, grade in grades.items() if grade > 0 and name in self._documents}
                self.relevant[query] = sorted(there, key=lambda name: -there[name])

    def document(self, query: str, name: str) -> str | None:
        """Return the text of a document of a query."""
        return self._candidates.get(query, self._documents).get(name)


def section(subject: Subject) -> Section | None:
    """Return the section; None if no task has queries, pairs or classes, or there is one model only."""
    comparison, (base, *others) = subject.comparison, subject.names
    changed = {task.label: changes_of(task) for task in comparison.tasks if task.first.kind in WITH_EXAMPLES}
    if not changed or not others:
        return None
    tasks = sorted((one for one in changed.values() if one is not None), key=lambda one: list(COUNTED).index(one.kind))
    limit = max(1, min(LISTED, IN_ALL // max(1, len(tasks) * len(others))))
    data = page_data(subject, tasks, limit)
    values = {
        "data": data,
        "base": base,
        "shown": DOCUMENTS,
        "has_seeds": any(len(model.seeds) > 1 for model in comparison.models),
        "without_ids": [label for label, one in changed.items() if one is None],
        "without_texts": [
            one.task.label + (f" ({subject.without_data[key]})" if key in subject.without_data else "")
            for one in tasks
            if one.kind != "classes" and (key := one.task.key) not in subject.data
        ],
    }
    document = {
        "limit": limit,
        "without_ids": values["without_ids"],
        "tasks": [_entry(one, others, limit) for one in tasks],
    }
    return Section("queries", "Queries won and lost", values, document, tuple(_figures(tasks, others)))


def changes_of(task: TaskScores) -> TaskChanges | None:
    """Return what changed between the first seed of the base and that of each other model; None without examples."""
    base, *others = (results[0] for results in task.results)
    if base.kind in ("sts", "pair_classification"):
        if not task.is_tested:
            return None
        return TaskChanges(task, "pairs", len(base.examples["gold"]), [moved_pairs(base, other) for other in others])
    if base.kind == "classification":
        if not all({"gold", "predicted"} <= result.examples.keys() for result in (base, *others)):
            return None
        confused = [confused_classes(base, other) for other in others]
        return TaskChanges(task, "classes", len(base.examples["gold"]), confused)
    one, *rest = (ranked(result) for result in (base, *others))
    if one is None or None in rest:
        return None
    return TaskChanges(
        task, "queries", len(one.queries), [changed_queries(one, each) for each in rest if each], one.depth
    )


def page_data(subject: Subject, tasks: Sequence[TaskChanges], limit: int) -> dict[str, Any]:
    """Return the data of the page: entries that name texts by number."""
    texts, shown = PageTexts(), []
    for task in tasks:
        data = subject.data.get(task.task.key)
        write: Callable[[Sequence[Any]], list[dict[str, Any]]] = _class_entries
        if task.kind == "queries":
            write = partial(_query_entries, texts=texts, source=QueryTexts(data))
        elif task.kind == "pairs":
            write = partial(_pair_entries, texts=texts, rows=None if data is None else _rows(data))
        lists = [
            {
                "changed": len(changes),
                "won": sum(one.is_won for one in changes),
                "entries": write(listed(changes, limit)),
            }
            for changes in task.by_model
        ]
        about = {"label": task.task.label, "kind": task.kind, "scored": task.task.first.kind == "sts"}
        shown.append({**about, "total": task.total, "depth": task.depth, "lists": lists})
    return {"models": subject.names, "texts": texts.rows, "tasks": shown, "limit": limit, "length": TEXT_LENGTH}


def listed(changes: Sequence[Any], limit: int) -> list[Any]:
    """Return up to `limit` changes in their order; half of them are won and half lost where there are as many."""
    won = [i for i, change in enumerate(changes) if change.is_won]
    lost = [i for i, change in enumerate(changes) if not change.is_won]
    lost = lost[: max(limit // 2, limit - len(won))]
    return [changes[i] for i in sorted([*lost, *won[: limit - len(lost)]])]


def _query_entries(changes: Sequence[Any], texts: PageTexts, source: QueryTexts) -> list[dict[str, Any]]:
    entries = []
    for change in changes:
        query, relevant = change.query, source.relevant.get(change.query, [])
        tops = [top[:DOCUMENTS] for top in (change.top_before, change.top_after)]
        ranks = (change.before, change.after)
        at_rank = {top[rank - 1] for rank, top in zip(ranks, tops, strict=True) if rank and rank <= len(top)}
        right = {name for top in tops for name in top} & {*at_rank, *relevant}
        # Where neither model has a relevant document among those shown, one is shown beside them.
        shown = [*tops, sorted(right), [] if right else relevant[:1]]
        *numbers, right_numbers, missed = (
            [texts.number(name, source.document(query, name)) for name in names] for names in shown
        )
        entries.append(
            {
                "query": texts.number(query, source.queries.get(query)),
                "ranks": list(ranks),
                "won": change.is_won,
                "tops": numbers,
                "right": right_numbers,
                "missed": missed,
            }
        )
    return entries


def _pair_entries(changes: Sequence[Any], texts: PageTexts, rows: Any) -> list[dict[str, Any]]:
    entries = []
    for change in changes:
        if rows is None:
            numbers = [texts.number(f"row {change.row + 1}", None)] * 2
        else:
            row = rows[change.row]
            numbers = [texts.number("", row[side]) for side in ("sentence1", "sentence2")]
        cosines = [round(change.before, 6), round(change.after, 6)]
        about = {"gold": change.gold, "cosines": cosines, "ranks": change.ranks, "won": change.is_won}
        entries.append({"texts": numbers, **about})
    return entries


def _class_entries(changes: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {
            "classes": [_shortened(change.gold), _shortened(change.predicted)],
            "counts": [change.before, change.after],
            "total": change.total,
            "won": change.is_won,
        }
        for change in changes
    ]


def _rows(task: Task) -> Any:
    return task_rows(task, KINDS[task.kind], task.settings.get("columns"))


def _shortened(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"


def _entry(changed: TaskChanges, models: Sequence[str], limit: int) -> dict[str, Any]:
    """Return a task's entry in the JSON file: the same changes as on the page, with ids instead of texts."""
    by_model = [
        {
            "model": model,
            "changed": len(changes),
            "won": sum(one.is_won for one in changes),
            "examples": [one._asdict() for one in listed(changes, limit)],
        }
        for model, changes in zip(models, changed.by_model, strict=True)
    ]
    return {"task": changed.task.label, "examples": changed.total, "models": by_model}


def _figures(tasks: Sequence[TaskChanges], models: Sequence[str]) -> Iterator[Figure]:
    for task in tasks:
        for model, changes in zip(models, task.by_model, strict=True):
            won = sum(one.is_won for one in changes)
            yield Figure("queries", model, f"{COUNTED[task.kind]} won", won, task.task.label)
            yield Figure("queries", model, f"{COUNTED[task.kind]} lost", len(changes) - won, task.task.label)
