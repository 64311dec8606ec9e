"""Map: the tasks' texts on two principal components, side by side for the models."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.comparison.verdict import best_and_other
from embrew.evaluation.kinds.retrieval import RANKS
from embrew.evaluation.rows import task_retrieval
from embrew.plot_style import CYCLE, METHODS
from embrew.report.sample import Key, TaskSample, sample_texts
from embrew.report.section import Figure, Section, Subject, VegaChart

if TYPE_CHECKING:
    from embrew.evaluation.report import Result

GREY = METHODS["untrained"]
EARLIER, LATER, SAME = "#4477AA", "#D55E00", "#009988"
OTHERS = "other labels"
SIZE = 260  # of a map, in pixels
COLUMNS = 3  # of maps
TEXT_LENGTH = 80  # characters of a text on the page


@dataclass(frozen=True)
class TextGroups:
    """What the texts of a map are coloured by.

    Attributes:
        about: What the groups are; empty if there is nothing to colour.
        groups: Group of each text.
        colours: Colour by group, in the order of the legend.
        changes: Change of rank by document (below 0: found earlier); None where it is relevant to no query.
    """

    about: str = ""
    groups: tuple[str, ...] = ()
    colours: Mapping[str, str] | None = None
    changes: tuple[float | None, ...] = ()


def section(subject: Subject) -> Section | None:
    """Return the section; None if no model's vectors were measured."""
    measured = {name: subject.vectors[name]["map"] for name in subject.names if subject.vectors.get(name)}
    maps: list[dict[str, Any]] = []
    document: dict[str, Any] = {}
    figures: list[Figure] = []
    for key, sample in sample_texts(subject.data).items() if measured else ():
        task = " ".join(key)
        own = {name: by_task[task] for name, by_task in measured.items() if task in by_task}
        if not own or len(sample.texts) < 2:
            continue
        groups = text_groups(subject, key, sample)
        chart = _chart(f"map-{len(maps)}", sample, own, groups)
        maps.append({"task": task, "texts": len(sample.texts), "chart": chart})
        variance = {name: each["variance"] for name, each in own.items()}
        document[task] = {"texts": len(sample.texts), "variance": variance}
        figures += [
            Figure("map", name, "variance of two principal components", share, task) for name, share in variance.items()
        ]
    if not maps:
        return None
    values = {"maps": maps, "not_measured": [name for name in subject.names if name not in measured]}
    return Section("map", "Map", values, {"tasks": document}, figures)


def aligned(points: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return points turned, mirrored, moved and scaled onto the reference, so that distances change by one factor.

    Both `(texts, 2)` sets are centred and scaled to a mean squared distance of 1 from their mean (Procrustes).
    """
    from scipy.linalg import orthogonal_procrustes

    def unit(one: np.ndarray) -> np.ndarray:
        centred = one - one.mean(0)
        size = np.sqrt((centred**2).sum(1).mean())
        return np.asarray(centred / size if size > 0 else centred)

    moved = unit(points.astype(np.float64))
    turn: Any = orthogonal_procrustes(moved, unit(reference.astype(np.float64)))[0]
    return np.asarray(moved @ turn)


def text_groups(subject: Subject, key: Key, sample: TaskSample) -> TextGroups:
    """Return the groups of a task's texts: by label, or documents by the change of their queries' ranks."""
    if sample.labels:
        frequent = [label for label, _ in Counter(sample.labels).most_common(len(CYCLE))]
        groups = tuple(label if label in frequent else OTHERS for label in sample.labels)
        colours = dict(zip(frequent, CYCLE, strict=False)) | ({OTHERS: GREY} if OTHERS in groups else {})
        return TextGroups("label", groups, colours)
    if len(subject.names) == 1:
        return TextGroups()
    best, other = best_and_other(subject.comparison)
    changes = _rank_changes(subject, key, best, other)
    if not changes:
        return TextGroups()
    a, b = subject.names[other], subject.names[best]
    colours = {f"earlier by {b}": EARLIER, f"later by {b}": LATER, "at the same rank": SAME}
    earlier, later, same = colours
    none = "relevant to no query"
    of_texts = tuple(changes.get(name) for name in sample.ids)
    groups = tuple(none if one is None else earlier if one < 0 else later if one > 0 else same for one in of_texts)
    about = f"rank of its query's first relevant document, by {b} compared with {a}"
    shown = {group: colour for group, colour in {**colours, none: GREY}.items() if group in groups}
    return TextGroups(about, groups, shown, of_texts)


def _rank_changes(subject: Subject, key: Key, best: int, other: int) -> dict[str, float]:
    """Return the mean change of rank by relevant document, over its queries; empty if ranks are not known.

    The rank of a query is that of its first relevant document; a rank beyond those stored counts as the next one.
    """
    scores = next((task for task in subject.comparison.tasks if task.key == key), None)
    if scores is None or scores.first.kind != "retrieval":
        return {}
    ranks = [_ranks(scores.results[model]) for model in (best, other)]
    changes: dict[str, list[float]] = {}
    for query, grades in task_retrieval(subject.data[key]).qrels.items():
        if query in ranks[0] and query in ranks[1]:
            for document in (name for name, grade in grades.items() if grade > 0):
                changes.setdefault(document, []).append(ranks[0][query] - ranks[1][query])
    return {document: float(np.mean(values)) for document, values in changes.items()}


def _ranks(results: Sequence[Result]) -> dict[str, float]:
    """Return the mean rank over seeds by query; empty if a result has no ranks."""
    if not all({"rank", "query"} <= result.examples.keys() for result in results):
        return {}
    ranks: dict[str, list[int]] = {}
    for result in results:
        for query, rank in zip(result.examples["query"], result.examples["rank"], strict=True):
            ranks.setdefault(query, []).append(RANKS + 1 if rank is None else rank)
    return {query: float(np.mean(values)) for query, values in ranks.items()}


def _chart(name: str, sample: TaskSample, own: Mapping[str, Mapping[str, Any]], groups: TextGroups) -> VegaChart:
    """Return a map per model; texts that are selected in one stay coloured in all."""
    import altair as alt

    reference = next(iter(own.values()))["points"]
    points = {model: aligned(each["points"], reference).round(2) for model, each in own.items()}
    reach = max(float(abs(each).max()) for each in points.values()) * 1.03
    scale = alt.Scale(domain=[-reach, reach], nice=False)
    tooltip = ["text:N", "id:N", *(["group:N"] if groups.groups else []), *(["change:Q"] if groups.changes else [])]
    colour: Any = alt.value(CYCLE[0])
    if groups.colours:
        domain = [_shortened(group) for group in groups.colours]
        colour = alt.Color("group:N", title=None, scale=alt.Scale(domain=domain, range=list(groups.colours.values())))
    brush = alt.selection_interval(name="brush", resolve="global")
    panels = [
        alt.Chart(
            width=SIZE,
            height=SIZE,
            title=alt.Title(model, limit=SIZE, subtitle=f"{100 * own[model]['variance']:.0f} % of the variance"),
        )
        .mark_circle(size=22)
        .encode(
            x=alt.X(f"x{number}:Q", axis=None, scale=scale),
            y=alt.Y(f"y{number}:Q", axis=None, scale=scale),
            color=colour,
            opacity=alt.condition(brush, alt.value(0.75), alt.value(0.06)),
            tooltip=tooltip,
        )
        for number, model in enumerate(points)
    ]
    with warnings.catch_warnings(action="ignore"):  # that all maps have the same brush
        chart = alt.concat(*panels, columns=COLUMNS, data=alt.NamedData("points")).add_params(brush)
    rows = []
    for i, text in enumerate(sample.texts):
        row: dict[str, Any] = {"id": _shortened(sample.ids[i]), "text": _shortened(text)}
        row |= {"group": _shortened(groups.groups[i])} if groups.groups else {}
        row |= {"change": groups.changes[i]} if groups.changes else {}
        for number, each in enumerate(points.values()):
            row |= {f"x{number}": float(each[i, 0]), f"y{number}": float(each[i, 1])}
        rows.append(row)
    spec = {**chart.to_dict(), "datasets": {"points": rows}}
    coloured = f", coloured by {groups.about}" if groups.about else ""
    return VegaChart(name, spec, f"{len(rows)} texts, a map per model{coloured}.")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_LENGTH else line[: TEXT_LENGTH - 1] + "…"
