"""Queries won and lost: queries whose rank changed most, pairs that moved most, and confused classes, with texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.retrieval import RANKING_DEPTH, candidate_names
from embrew.evaluation.kinds.similarity import best_threshold
from embrew.evaluation.results import Result
from embrew.evaluation.rows import task_retrieval, task_rows
from embrew.evaluation.task import Task
from embrew.report.comparison import TaskScores
from embrew.report.section import Section, Subject, Values
from embrew.settings.validation import shortened

LISTED = 10  # maximum number of changes of a task and model that are won, and that are lost
LISTED_IN_ALL = 1000  # maximum number of changes on the page
DOCUMENTS = 3  # documents per query and model
NAME_LENGTH = 100  # maximum number of characters of an id or a class
TEXT_LENGTH = 300  # maximum number of characters of a text
WITH_EXAMPLES = ("retrieval", "reranking", "rag", "sts", "pair_classification", "classification")


class RankedQueries(NamedTuple):
    """A result whose examples are queries.

    Attributes:
        queries: Ids of the queries.
        ranks: Rank of each query's first relevant document, from 1; None beyond `depth`.
        top: Ids of each query's nearest documents.
        depth: Largest known rank; None if all are known.
    """

    queries: list[str]
    ranks: list[int | None]
    top: list[list[str]]
    depth: int | None


class QueryChange(NamedTuple):
    """A query whose rank differs between two models: rank of its first relevant document, and nearest documents."""

    query: str
    before: int | None
    after: int | None
    top_before: list[str]
    top_after: list[str]

    @property
    def is_won(self) -> bool:
        """Whether the second model ranks a relevant document higher."""
        return self.before is None or (self.after is not None and self.after < self.before)


class PairChange(NamedTuple):
    """A pair that the second model has nearer to its gold score, or farther from it.

    Attributes:
        row: Index of the pair among the rows of the data.
        gold: Gold score, or 1 for a pair that matches.
        before: Cosine in the first model.
        after: Cosine in the second model.
        ranks: Ranks by gold score and by both cosines, from 1 for the lowest; ties have their mean.
        is_won: Whether the second model has the pair nearer, or on the right side of the threshold.
    """

    row: int
    gold: float
    before: float
    after: float
    ranks: tuple[float, float, float]
    is_won: bool


class Confusion(NamedTuple):
    """Number of the `total` texts of class `gold` that each of two models predicts as `predicted`."""

    gold: str
    predicted: str
    before: int
    after: int
    total: int

    @property
    def is_won(self) -> bool:
        """Whether the second model confuses them less often."""
        return self.after < self.before


def ranked(result: Result) -> RankedQueries | None:
    """Return the queries of a result; None if its examples name none."""
    examples = result.examples
    if {"query", "rank", "top"} <= examples.keys():
        depth = None if result.kind == "reranking" else RANKING_DEPTH
        return RankedQueries(examples["query"], examples["rank"], examples["top"], depth)
    if {"question", "retrieved", "contains_answer"} <= examples.keys():
        ranks = [1 if inside else None for inside in examples["contains_answer"]]
        return RankedQueries(examples["question"], ranks, [[name] for name in examples["retrieved"]], 1)
    return None


def changed_queries(before: RankedQueries, after: RankedQueries) -> list[QueryChange]:
    """Return queries whose rank differs, those first whose ranks have the largest ratio.

    From rank 1 to 10 is as large a change as from 10 to 100. A rank beyond the known ones counts as the next one.
    """
    beyond = 1 + (before.depth or 0)  # not used where all ranks are known

    def size(change: QueryChange) -> float:
        return abs(math.log((change.before or beyond) / (change.after or beyond)))

    rows = zip(before.queries, before.ranks, after.ranks, before.top, after.top, strict=True)
    changes = [QueryChange(*row) for row in rows if row[1] != row[2]]
    return sorted(changes, key=size, reverse=True)


def moved_pairs(before: Result, after: Result) -> list[PairChange]:
    """Return pairs that changed, the largest changes first.

    Of scored pairs, the change is that of the distance between the rank by cosine and the rank by gold score, within
    subsets if these are scored apart. Of labelled pairs, those count that only one model has on the right side of its
    most accurate threshold; the change is that of the rank by cosine.
    """
    gold = np.asarray(before.examples["gold"], dtype=np.float64)
    cosines = [np.asarray(result.examples["predicted"], dtype=np.float64) for result in (before, after)]
    groups = np.zeros(len(gold), dtype=np.int64)
    if before.scores.get("protocol") == "per-subset":
        groups = np.unique(np.asarray(before.examples["subset"]), return_inverse=True)[1]
    by_gold, *by_cosine = (_ranks(values, groups) for values in (gold, *cosines))
    if before.kind == "sts":
        errors = [np.abs(ranks - by_gold) for ranks in by_cosine]
        size = np.abs(errors[1] - errors[0])
    else:
        errors = [((values >= best_threshold(values, gold)[0]) != gold).astype(float) for values in cosines]
        size = np.where(errors[0] != errors[1], np.abs(by_cosine[1] - by_cosine[0]), 0.0)
    order = [int(i) for i in np.argsort(-size, kind="stable") if errors[0][i] != errors[1][i]]
    return [
        PairChange(
            row=i,
            gold=float(gold[i]),
            before=float(cosines[0][i]),
            after=float(cosines[1][i]),
            ranks=(float(by_gold[i]), float(by_cosine[0][i]), float(by_cosine[1][i])),
            is_won=bool(errors[1][i] < errors[0][i]),
        )
        for i in order
    ]


def confused_classes(before: Result, after: Result) -> list[Confusion]:
    """Return pairs of classes that one model confuses more often than the other, the largest differences first.

    What a model predicts for a text is the class that most of its classifiers predict.
    """
    totals = Counter(before.examples["gold"])
    counts = [
        Counter(zip(result.examples["gold"], result.examples["predicted"], strict=True)) for result in (before, after)
    ]
    confused = sorted({pair for count in counts for pair in count if pair[0] != pair[1]})
    confusions = [Confusion(*pair, counts[0][pair], counts[1][pair], totals[pair[0]]) for pair in confused]
    changed = [confusion for confusion in confusions if confusion.before != confusion.after]
    return sorted(changed, key=lambda confusion: abs(confusion.after - confusion.before), reverse=True)


def _ranks(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return ranks within groups, from 1 for the lowest; ties have their mean."""
    from scipy.stats import rankdata  # takes a second

    ranks = np.empty(len(values))
    for group in np.unique(groups):
        ranks[groups == group] = rankdata(values[groups == group])
    return ranks


ExampleChange = QueryChange | PairChange | Confusion


class TaskChanges(NamedTuple):
    """What changed on a task.

    Attributes:
        kind: What its examples are.
        total: Number of examples.
        by_model: Changes from the base, the largest first, for each other model.
        depth: Largest known rank of queries; None if all are known.
    """

    kind: Literal["queries", "pairs", "classes"]
    total: int
    by_model: Sequence[Sequence[ExampleChange]]
    depth: int | None = None


class TaskTexts(NamedTuple):
    """Texts of a task, empty without its data.

    Attributes:
        queries: Texts of queries by id.
        relevant: Ids of a query's relevant documents, the highest grade first.
        documents: Function that returns the texts of a query's documents, by id.
        rows: Rows of a task with pairs.
    """

    queries: Mapping[str, str] = {}
    relevant: Mapping[str, Sequence[str]] = {}
    documents: Callable[[str], Mapping[str, str]] = lambda _: {}
    rows: Sequence[Mapping[str, str]] | None = None


def section(subject: Subject) -> Section | None:
    """Return the section; None if no task has queries, pairs or classes, or there is one model only."""
    comparison, (base, *others) = subject.comparison, subject.names
    changed = [(task, changes_of(task)) for task in comparison.tasks if task.first.kind in WITH_EXAMPLES]
    if not changed or not others:
        return None
    tasks = [(task, changes) for task, changes in changed if changes is not None]
    tasks.sort(key=lambda entry: ("queries", "pairs", "classes").index(entry[1].kind))
    limit = max(1, min(LISTED, LISTED_IN_ALL // max(1, 2 * len(tasks) * len(others))))
    lists: list[Values] = []
    entries: list[Values] = []
    for task, changes in tasks:
        texts, examples = texts_of_task(subject.data.get(task.key), changes.kind), []
        about = {"task": task.label, "kind": changes.kind, "scored": task.first.kind == "sts", "depth": changes.depth}
        for model, all_changes in zip(others, changes.by_model, strict=True):
            lists.append(about | change_list((base, model), all_changes, texts, limit))
            chosen = [change._asdict() for change in listed(all_changes, limit)]
            examples.append({"model": model, "changed": len(all_changes), "won": lists[-1]["won"], "examples": chosen})
        entries.append({"task": task.label, "kind": changes.kind, "examples": changes.total, "models": examples})
    document = {
        "limit": limit,
        "without_ids": [task.label for task, changes in changed if changes is None],
        "tasks": entries,
    }
    values = {
        "lists": lists,
        "base": base,
        "has_seeds": any(len(model.seeds) > 1 for model in comparison.models),
        "without_texts": [
            task.label + (f" ({subject.without_data[task.key]})" if task.key in subject.without_data else "")
            for task, changes in tasks
            if changes.kind != "classes" and task.key not in subject.data
        ],
    }
    return Section("Queries won and lost", document, values)


def changes_of(task: TaskScores) -> TaskChanges | None:
    """Return what changed between the first seed of the base and that of each other model; None without examples."""
    base, *others = (results[0] for results in task.results)
    if base.kind in ("sts", "pair_classification") and task.is_tested:
        return TaskChanges("pairs", len(base.examples["gold"]), [moved_pairs(base, other) for other in others])
    is_named = all({"gold", "predicted"} <= result.examples.keys() for result in (base, *others))
    if base.kind == "classification" and is_named:
        return TaskChanges("classes", len(base.examples["gold"]), [confused_classes(base, other) for other in others])
    before, *after = (ranked(result) for result in (base, *others))
    if before is None or None in after:
        return None
    by_model = [changed_queries(before, queries) for queries in after if queries]
    return TaskChanges("queries", len(before.queries), by_model, before.depth)


def texts_of_task(task: Task | None, kind: str) -> TaskTexts:
    """Return the texts of a task's queries or pairs."""
    if task is None or kind == "classes":
        return TaskTexts()
    if kind == "queries" and task.kind != "reranking":
        data = task_retrieval(task)
        documents = {document.id: document.content for document in data.corpus}
        # Retrieval-augmented answers are right if the document holds an answer: judgements do not count.
        relevant = {
            query: sorted((name for name in grades if grades[name] > 0 and name in documents), key=lambda n: -grades[n])
            for query, grades in (data.qrels.items() if task.kind == "retrieval" else ())
        }
        return TaskTexts(data.queries, relevant, lambda _: documents)
    rows = task_rows(task, KINDS[task.kind], task.settings.get("columns"))
    if kind == "pairs":
        return TaskTexts(rows=rows)
    candidates = {  # named within a query
        str(number): {name: text for text, name in candidate_names(row["positive"], row["negative"]).items()}
        for number, row in enumerate(rows, start=1)
    }
    relevant = {query: [n for n in names if n.startswith("positive ")] for query, names in candidates.items()}
    return TaskTexts({str(i): str(row["query"]) for i, row in enumerate(rows, 1)}, relevant, candidates.__getitem__)


def listed(changes: Sequence[ExampleChange], limit: int) -> list[ExampleChange]:
    """Return up to `limit` changes that are won, and up to `limit` that are lost, in their order."""
    won, lost = ([change for change in changes if change.is_won == is_won] for is_won in (True, False))
    return won[:limit] + lost[:limit]


def change_list(
    names: tuple[str, str], changes: Sequence[ExampleChange], texts: TaskTexts, limit: int = LISTED
) -> Values:
    """Return what the page lists of the changes between two models."""
    won = sum(change.is_won for change in changes)
    entries = [page_entry(change, texts) for change in listed(changes, limit)]
    return {"names": names, "won": won, "lost": len(changes) - won, "entries": entries}


def page_entry(change: ExampleChange, texts: TaskTexts) -> Values:
    """Return the page's entry of a change, with its texts."""
    if isinstance(change, Confusion):
        return {
            "classes": [shortened(name, NAME_LENGTH) for name in (change.gold, change.predicted)],
            "counts": [change.before, change.after],
            "total": change.total,
            "won": change.is_won,
        }
    if isinstance(change, PairChange):
        sentences = [page_text(f"row {change.row + 1}", None)]
        if texts.rows is not None:
            sentences = [page_text("", texts.rows[change.row][side]) for side in ("sentence1", "sentence2")]
        return {
            "texts": sentences,
            "gold": change.gold,
            "cosines": [change.before, change.after],
            "ranks": change.ranks,
            "won": change.is_won,
        }
    query, documents = change.query, texts.documents(change.query)
    relevant = texts.relevant.get(query, [])
    ranks, tops = (change.before, change.after), [change.top_before[:DOCUMENTS], change.top_after[:DOCUMENTS]]
    at_rank = {top[rank - 1] for rank, top in zip(ranks, tops, strict=True) if rank and rank <= len(top)}
    right = {name for top in tops for name in top} & {*at_rank, *relevant}
    # Where neither model has a relevant document among those shown, one is shown beside them.
    missed = [] if right else relevant[:1]
    sides = [[page_text(name, documents.get(name), is_right=name in right) for name in top] for top in tops]
    return {
        "query": page_text(query, texts.queries.get(query)),
        "ranks": ranks,
        "won": change.is_won,
        "sides": sides,
        "missed": [page_text(name, documents.get(name)) for name in missed],
    }


def page_text(name: str, text: str | None, *, is_right: bool = False) -> Values:
    """Return name, beginning and length of a text; the text is None if it is not known."""
    return {
        "name": shortened(name, NAME_LENGTH),
        "is_right": is_right,
        "length": len(text or ""),
        "text": None if text is None else text[:TEXT_LENGTH],
    }
