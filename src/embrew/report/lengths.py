"""Scores by text length, from the examples of results and the texts of their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from embrew.comparison import Comparison, TaskScores
from embrew.comparison.changes import mean_ranks
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.report import Result
from embrew.evaluation.rows import task_rows
from embrew.evaluation.task import GridCache
from embrew.report.example_texts import retrieval_of

if TYPE_CHECKING:
    from embrew.evaluation.task import Task

EDGES = (0, 8, 16, 32, 64, 128, 256, 512)  # a bin holds lengths above an edge, up to the next one
FEWEST = 10  # a bin with fewer examples is left out
RESIDUAL = "distance of ranks"


class LengthScore(NamedTuple):
    """The score of a model on texts of some length.

    Attributes:
        task: Task with split and size.
        model: Name.
        words: Range of the bin, such as `9-16`.
        score: Mean over examples, with its 95 % interval from `low` to `high`.
        examples: Their number.
        metric: What the score is.
        of: The text whose words are counted.
    """

    task: str
    model: str
    words: str
    score: float
    low: float
    high: float
    examples: int
    metric: str
    of: str


def scores_by_length(
    comparison: Comparison, data: Mapping[tuple[str, str], Task], cache: GridCache
) -> list[LengthScore]:
    """Return scores by number of words, of the tasks whose results have examples and whose data is known.

    Retrieval counts the words of a query's relevant documents (mean), classification those of the text, STS those of
    both sentences (mean). STS has no score per pair; instead, the distance between the pair's ranks by cosine and by
    human score is used, as a share of the number of pairs: lower is better.
    """
    found: list[LengthScore] = []
    for task in comparison.tasks:
        source = data.get((task.first.task, task.first.split))
        if source is None or not task.is_tested:
            continue
        lengths, of = _lengths(source, task.first, cache)
        for model, results in zip(comparison.models, task.results, strict=True):
            values = np.mean([_values(result) for result in results], axis=0)
            if len(values) == len(lengths):
                found += _binned(task, model.name, values, lengths, of)
    return found


def name_of(lengths: np.ndarray) -> np.ndarray:
    """Return the index of each length's bin."""
    return np.asarray(np.searchsorted(EDGES, lengths, side="left") - 1).clip(0)


def labels() -> list[str]:
    """Return the bins' names in their order."""
    return [f"{low + 1}-{high}" for low, high in pairwise(EDGES)] + [f"over {EDGES[-1]}"]


def _binned(task: TaskScores, model: str, values: np.ndarray, lengths: np.ndarray, of: str) -> list[LengthScore]:
    bins = name_of(lengths)
    found = []
    for i, words in enumerate(labels()):
        chosen = values[bins == i]
        if len(chosen) >= FEWEST:
            mean, half = float(chosen.mean()), 1.96 * float(chosen.std(ddof=1)) / len(chosen) ** 0.5
            metric = task.metric if "score" in task.first.examples else RESIDUAL
            found.append(LengthScore(task.label, model, words, mean, mean - half, mean + half, len(chosen), metric, of))
    return found


def _values(result: Result) -> np.ndarray:
    """Return the score of each example, or the distance between its ranks if the score is a correlation."""
    if "score" in result.examples:
        return np.asarray(result.examples["score"], dtype=np.float64)
    ranks = [mean_ranks(np.asarray(result.examples[name])) for name in ("predicted", "gold")]
    return np.asarray(np.abs(ranks[0] - ranks[1]) / len(ranks[0]))


def _lengths(task: Task, result: Result, cache: GridCache) -> tuple[np.ndarray, str]:
    """Return the number of words by example, in the order of the examples, and whose they are."""
    kind = KINDS[task.kind]
    if task.kind == "retrieval":
        data = retrieval_of(task, cache)
        texts = {document.id: document for document in data.corpus}
        judged = {query: [d for d, grade in grades.items() if grade > 0] for query, grades in data.qrels.items()}
        names = result.examples.get("query") or [query for query, documents in judged.items() if documents]
        known = [[_words(texts[d].content) for d in judged.get(name, ()) if d in texts] for name in names]
        return np.array([np.mean(counts) if counts else 0 for counts in known]), "relevant document"
    if task.kind not in ("sts", "classification"):
        return np.zeros(0), ""
    rows: Any = task_rows(task, kind, task.settings.get("columns"))
    columns: list[Sequence[str]] = [list(rows[name]) for name in kind.about]
    counts = np.mean([[_words(text) for text in column] for column in columns], axis=0)
    return counts, "text" if len(columns) == 1 else "sentence"


def _words(text: str) -> int:
    return len(text.split())
