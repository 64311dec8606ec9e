"""Map: the tasks' texts on two principal components, side by side for the models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from embrew.evaluation.kinds.retrieval import RANKING_DEPTH
from embrew.evaluation.rows import task_retrieval
from embrew.plot_style import CYCLE, METHODS
from embrew.report.geometry import TaskKey, TaskSample, sample_texts
from embrew.report.section import Components, Section, Subject
from embrew.report.verdict import best_and_other
from embrew.settings.validation import shortened

if TYPE_CHECKING:
    from embrew.evaluation.results import Result

GREY = METHODS["untrained"]
EARLIER, LATER, SAME = "#4477AA", "#D55E00", "#009988"
OTHERS, NONE = "other labels", "relevant to no query"
TEXT_LENGTH = 80  # maximum number of characters of a text on the page


class TextGroups(NamedTuple):
    """What the texts of a map are coloured by.

    Attributes:
        about: Meaning of the groups; empty if there is nothing to colour.
        colours: Colour by group, in the order of the legend.
        groups: Group of each text.
        changes: Change of rank by document (below 0: found earlier); None where it is relevant to no query.
    """

    about: str = ""
    colours: Mapping[str, str] = {}
    groups: Sequence[str] = ()
    changes: Sequence[float | None] = ()


class Map(NamedTuple):
    """What the template draws for a task.

    Attributes:
        name: Id of the chart on the page.
        task: Name and split.
        rows: A row per text: id, text, group, change, and its coordinates in the map of each model.
        models: Share of the variance that both components have, by model.
        reach: Largest coordinate of the axes.
        colours: Colour by group, in the order of the legend.
        about: Meaning of the groups; empty if there are none.
    """

    name: str
    task: str
    rows: list[dict[str, str | float | None]]
    models: dict[str, float]
    reach: float
    colours: dict[str, str]
    about: str


def section(subject: Subject) -> Section | None:
    """Return the section; None if no model's vectors were measured."""
    measured = {name: subject.vectors[name]["map"] for name in subject.names if subject.vectors.get(name)}
    maps: list[Map] = []
    tasks = {}
    for key, sample in sample_texts(subject.data).items() if measured else ():
        task = " ".join(key)
        components = {name: by_task[task] for name, by_task in measured.items() if task in by_task}
        if components and len(sample.texts) > 1:
            maps.append(_map(f"map-{len(maps)}", task, sample, components, text_groups(subject, key, sample)))
            tasks[task] = {"texts": len(sample.texts), "variance": maps[-1].models}
    if not maps:
        return None
    not_measured = [name for name in subject.names if name not in measured]
    return Section("Map", {"tasks": tasks}, {"maps": maps, "not_measured": not_measured, "plain": CYCLE[0]})


def aligned(points: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return points turned, mirrored, moved and scaled onto the reference, so that distances change by one factor.

    Both `(texts, 2)` sets are centred and scaled to a mean squared distance of 1 from their mean (Procrustes).
    """
    from scipy.linalg import orthogonal_procrustes

    units = []
    for values in (points.astype(np.float64), reference.astype(np.float64)):
        centred = values - values.mean(0)
        size = np.sqrt((centred**2).sum(1).mean())
        units.append(centred / size if size > 0 else centred)
    return np.asarray(units[0] @ orthogonal_procrustes(*units)[0])


def text_groups(subject: Subject, key: TaskKey, sample: TaskSample) -> TextGroups:
    """Return the groups of a task's texts: by label, or documents by the change of their queries' ranks."""
    if sample.labels:
        frequent = [label for label, _ in Counter(sample.labels).most_common(len(CYCLE))]
        groups = [label if label in frequent else OTHERS for label in sample.labels]
        colours = dict(zip(frequent, CYCLE, strict=False)) | ({OTHERS: GREY} if OTHERS in groups else {})
        return TextGroups("label", colours, groups)
    if len(subject.names) == 1:
        return TextGroups()
    best, other = best_and_other(subject.comparison)
    by_document = _rank_changes(subject, key, best, other)
    if not by_document:
        return TextGroups()
    best_name, other_name = subject.names[best], subject.names[other]
    earlier, later, same = f"earlier by {best_name}", f"later by {best_name}", "at the same rank"
    changes = [by_document.get(name) for name in sample.ids]
    groups = [
        NONE if change is None else earlier if change < 0 else later if change > 0 else same for change in changes
    ]
    colours = {earlier: EARLIER, later: LATER, same: SAME, NONE: GREY}
    about = f"rank of its query's first relevant document, by {best_name} compared with {other_name}"
    return TextGroups(about, {name: colours[name] for name in colours if name in groups}, groups, changes)


def _rank_changes(subject: Subject, key: TaskKey, best: int, other: int) -> dict[str, float]:
    """Return the mean change of rank by relevant document, over its queries; empty if ranks are not known.

    The rank of a query is that of its first relevant document; a rank beyond those stored counts as the next one.
    """
    scores = next((task for task in subject.comparison.tasks if task.key == key), None)
    if scores is None or scores.first.kind != "retrieval":
        return {}
    after, before = _ranks(scores.results[best]), _ranks(scores.results[other])
    changes: dict[str, list[float]] = {}
    for query, grades in task_retrieval(subject.data[key]).qrels.items():
        for document in (name for name, grade in grades.items() if grade > 0 and query in after and query in before):
            changes.setdefault(document, []).append(after[query] - before[query])
    return {document: float(np.mean(values)) for document, values in changes.items()}


def _ranks(results: Sequence[Result]) -> dict[str, float]:
    """Return the mean rank over seeds by query; empty if a result has no ranks."""
    if not all({"rank", "query"} <= result.examples.keys() for result in results):
        return {}
    ranks: dict[str, list[int]] = {}
    for result in results:
        for query, rank in zip(result.examples["query"], result.examples["rank"], strict=True):
            ranks.setdefault(query, []).append(RANKING_DEPTH + 1 if rank is None else rank)
    return {query: float(np.mean(values)) for query, values in ranks.items()}


def _map(name: str, task: str, sample: TaskSample, components: Mapping[str, Components], groups: TextGroups) -> Map:
    """Return the map of a task, from the principal components of each model."""
    columns: dict[str, Sequence[str | float | None]] = {"id": _shortened(sample.ids), "text": _shortened(sample.texts)}
    columns |= {"group": _shortened(groups.groups)} if groups.groups else {}
    columns |= {"change": groups.changes} if groups.changes else {}
    reference, reach = next(iter(components.values()))["points"], 0.0
    for number, by_model in enumerate(components.values()):
        points = aligned(by_model["points"], reference).round(2)
        columns |= {f"x{number}": points[:, 0].tolist(), f"y{number}": points[:, 1].tolist()}
        reach = max(reach, 1.03 * float(abs(points).max()))
    return Map(
        name,
        task,
        rows=[dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
        models={model: by_model["variance"] for model, by_model in components.items()},
        reach=reach,
        colours=dict(zip(_shortened(list(groups.colours)), groups.colours.values(), strict=True)),
        about=groups.about,
    )


def _shortened(texts: Sequence[str]) -> list[str]:
    return [shortened(" ".join(text.split()), TEXT_LENGTH) for text in texts]
