"""Maps of texts: positions by model, and groups by label or by change of rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embrew.comparison import Comparison
from embrew.comparison.verdict import best_and_other
from embrew.evaluation.kinds.retrieval import RANKS
from embrew.evaluation.rows import task_retrieval
from embrew.plot_style import CYCLE, METHODS
from embrew.report.geometry import name_of
from embrew.report.projection import aligned, tsne, unit
from embrew.report.sample import Key, TaskSample, sample_texts
from embrew.report.subject import Subject

if TYPE_CHECKING:
    from embrew.evaluation.report import Result
    from embrew.evaluation.task import Task

GREY = METHODS["untrained"]
EARLIER, LATER = "#4477AA", "#D55E00"
OTHERS = "other labels"


@dataclass(frozen=True)
class TextMap:
    """The map of a task's texts.

    Attributes:
        task: Task and split.
        sample: Ids, texts and labels.
        points: `(texts, 2)` by model, aligned to the first one.
        variance: Share of the vectors' variance that two principal components hold, by model.
        groups: Group of each text; empty if there is nothing to colour.
        colours: Colour by group, in the order of the legend.
        changes: Change of rank by document (below 0: found earlier); None where it is relevant to no query.
        coloured: What the groups are.
    """

    task: str
    sample: TaskSample
    points: Mapping[str, np.ndarray]
    variance: Mapping[str, float]
    groups: tuple[str, ...]
    colours: Mapping[str, str]
    changes: tuple[float | None, ...]
    coloured: str


def maps_of(subject: Subject) -> list[TextMap]:
    """Return the map of each task, of the models whose vectors were measured on it."""
    measured = {name: each["map"] for name, each in subject.measured.get("geometry", {}).items() if each}
    names = [model.name for model in subject.comparison.models if model.name in measured]
    maps = []
    for key, sample in sample_texts(subject.data).items():
        there = {name: measured[name][name_of(key)] for name in names if name_of(key) in measured[name]}
        if not there or len(sample.texts) < 2:
            continue
        points: dict[str, np.ndarray] = {}
        for name, components in there.items():
            found = np.asarray(components["points"], dtype=np.float64)
            flat = tsne(found) if subject.map_method == "tsne" else found[:, :2]
            points[name] = aligned(flat, next(iter(points.values()))) if points else unit(flat)
        variance = {name: float(sum(components["variance"][:2])) for name, components in there.items()}
        maps.append(TextMap(name_of(key), sample, points, variance, *_coloured(subject, key, sample)))
    return maps


def _coloured(
    subject: Subject, key: Key, sample: TaskSample
) -> tuple[tuple[str, ...], dict[str, str], tuple[float | None, ...], str]:
    """Return groups, their colours, changes of rank, and what the groups are."""
    nothing: tuple[None, ...] = (None,) * len(sample.ids)
    if sample.labels:
        frequent = [label for label, _ in Counter(sample.labels).most_common(len(CYCLE) + 1)]
        if len(frequent) > len(CYCLE):
            frequent = frequent[: len(CYCLE)]
        groups = tuple(label if label in frequent else OTHERS for label in sample.labels)
        palette = dict(zip(frequent, CYCLE, strict=False))
        return groups, palette | ({OTHERS: GREY} if OTHERS in groups else {}), nothing, "label"
    if len(subject.comparison.models) == 1:
        return (), {}, nothing, ""
    best, other = best_and_other(subject.comparison)
    changes = _changes(subject.comparison, subject.data[key], key, best, other)
    if changes is None:
        return (), {}, nothing, ""
    a, b = (subject.comparison.models[i].name for i in (other, best))
    earlier, later, same, none = f"earlier by {b}", f"later by {b}", "at the same rank", "relevant to no query"
    found = tuple(changes.get(name) for name in sample.ids)
    groups = tuple(
        none if change is None else earlier if change < 0 else later if change > 0 else same for change in found
    )
    palette = {earlier: EARLIER, later: LATER, same: "#009988", none: GREY}
    kept = {group: colour for group, colour in palette.items() if group in groups}
    return groups, kept, found, f"rank of its query's first relevant document, by {b} compared with {a}"


def _changes(comparison: Comparison, task: Task, key: Key, best: int, other: int) -> dict[str, float] | None:
    """Return the mean change of rank by relevant document, over its queries; None if ranks are not known.

    The rank of a query is that of its first relevant document; a rank beyond those kept counts as the next one.
    """
    scores = next((each for each in comparison.tasks if (each.first.task, each.first.split) == key), None)
    if scores is None or scores.first.kind != "retrieval":
        return None
    ranks = [_ranks(scores.results[model]) for model in (best, other)]
    if not all(ranks):
        return None
    found: dict[str, list[float]] = {}
    for query, grades in task_retrieval(task).qrels.items():
        if query in ranks[0] and query in ranks[1]:
            for document in (name for name, grade in grades.items() if grade > 0):
                found.setdefault(document, []).append(ranks[0][query] - ranks[1][query])
    return {document: float(np.mean(values)) for document, values in found.items()}


def _ranks(results: Sequence[Result]) -> dict[str, float]:
    """Return the mean rank over seeds by query; empty if a result has no ranks."""
    if not all("rank" in result.examples and "query" in result.examples for result in results):
        return {}
    found: dict[str, list[int]] = {}
    for result in results:
        for query, rank in zip(result.examples["query"], result.examples["rank"], strict=True):
            found.setdefault(query, []).append(RANKS + 1 if rank is None else rank)
    return {query: float(np.mean(values)) for query, values in found.items()}
