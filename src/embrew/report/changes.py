"""What changed between two results of a task: ranks of its queries, its pairs, its confused classes.

Nothing is averaged: where a model has several seeds, the caller chooses one result of each model.
"""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from embrew.evaluation.kinds.pair_classification import best_threshold
from embrew.evaluation.kinds.retrieval import RANKING_DEPTH
from embrew.evaluation.report import Result


class Ranked(NamedTuple):
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


def ranked(result: Result) -> Ranked | None:
    """Return the queries of a result; None if its examples name none."""
    examples = result.examples
    if {"query", "rank", "top"} <= examples.keys():
        depth = None if result.kind == "reranking" else RANKING_DEPTH
        return Ranked(examples["query"], examples["rank"], examples["top"], depth)
    if {"question", "retrieved", "contains_answer"} <= examples.keys():
        ranks = [1 if inside else None for inside in examples["contains_answer"]]
        return Ranked(examples["question"], ranks, [[name] for name in examples["retrieved"]], 1)
    return None


def changed_queries(before: Ranked, after: Ranked) -> list[QueryChange]:
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
