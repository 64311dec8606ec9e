"""Map: the tasks' texts in two dimensions, side by side for the models."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from embrew.plot_style import CYCLE
from embrew.report.chart import Chart
from embrew.report.section import Figure, Section
from embrew.report.subject import Subject

if TYPE_CHECKING:
    import altair as alt

    from embrew.report.maps import TextMap

PLACES = 50_000  # points × models on the page
BYTES = 60  # of a text on the page
SIZE = 260  # of a map, in pixels
COLUMNS = 3  # of maps
ABOUT = ("id", "text", "group", "change")  # of a text, before its coordinates
UNIT = 100  # coordinates are whole numbers; this many are the root of the mean squared distance from the centre
METHODS = {"pca": "principal components", "tsne": "t-SNE of 50 principal components"}


def section(subject: Subject) -> Section | None:
    """Return the section; None if no model's vectors were measured."""
    if not any(subject.measured.get("geometry", {}).values()):
        return None
    from embrew.report.maps import maps_of

    maps = maps_of(subject)
    if not maps:
        return None
    shown = _shown(maps, PLACES // len(subject.comparison.models))
    drawn = [
        {"task": one.task, "texts": len(rows), "of": len(one.sample.ids), "coloured": one.coloured, "chart": chart}
        for number, (one, rows) in enumerate(zip(maps, shown, strict=True))
        for chart in [_chart(f"map-{number}", one, rows, subject.map_method)]
    ]
    names = [model.name for model in subject.comparison.models]
    values = {
        "maps": drawn,
        "method": METHODS[subject.map_method],
        "is_tsne": subject.map_method == "tsne",
        "not_measured": [name for name in names if not any(name in one.points for one in maps)],
    }
    document = {
        "method": subject.map_method,
        "tasks": {one.task: {"texts": len(one.sample.ids), "variance": dict(one.variance)} for one in maps},
    }
    figures = [
        Figure("map", name, "variance of two principal components", share, one.task)
        for one in maps
        for name, share in one.variance.items()
    ]
    return Section("map", "Map", values, document, tuple(figures))


def shortened(text: str) -> str:
    """Return a text in one line that has at most `BYTES` bytes on the page."""
    line = " ".join(text.split())
    sizes = [6 if character in "<>&" else len(character.encode("utf-8", "replace")) for character in line]
    if sum(sizes) <= BYTES:
        return line
    kept = sum(size <= BYTES - 3 for size in accumulate(sizes))
    return line[:kept] + "…"


def _shown(maps: Sequence[TextMap], most: int) -> list[list[int]]:
    """Return the rows of each map that the page has room for: all, or a seeded sample with the same share of each."""
    total = sum(len(one.sample.ids) for one in maps)
    share = min(1.0, most / total)
    return [
        sorted(random.Random(0).sample(range(len(one.sample.ids)), int(share * len(one.sample.ids)))) for one in maps
    ]


def _chart(name: str, one: TextMap, rows: Sequence[int], method: str) -> Chart:
    """Return the maps of all models side by side; a row of data is a list, which is shorter than an object."""
    import altair as alt

    numbers = {model: str(len(ABOUT) + 2 * number) for number, model in enumerate(one.points)}
    brush = alt.selection_interval(name="brush", resolve="global")
    reach = max(float(abs(points[list(rows)]).max()) for points in one.points.values()) * UNIT * 1.03
    scale = alt.Scale(domain=[-reach, reach], nice=False)
    tooltip = [alt.Tooltip(f"{ABOUT.index('text')}:N", title="text"), alt.Tooltip(f"{ABOUT.index('id')}:N", title="id")]
    colour: Any = alt.value(CYCLE[0])
    if one.groups:
        group = f"{ABOUT.index('group')}:N"
        tooltip.append(alt.Tooltip(group, title="label" if one.coloured == "label" else "found"))
        shown = alt.Scale(domain=list(map(shortened, one.colours)), range=list(one.colours.values()))
        colour = alt.Color(group, title=None, scale=shown)
    if any(change is not None for change in one.changes):
        tooltip.append(alt.Tooltip(f"{ABOUT.index('change')}:Q", title="change of rank", format="+.1f"))
    panels = [
        alt.Chart(width=SIZE, height=SIZE, title=_title(one, model, method))
        .mark_circle(size=22)
        .encode(
            x=alt.X(f"{x}:Q", axis=None, scale=scale),
            y=alt.Y(f"{int(x) + 1}:Q", axis=None, scale=scale),
            color=colour,
            opacity=alt.condition(brush, alt.value(0.75), alt.value(0.06)),
            tooltip=tooltip,
        )
        for model, x in numbers.items()
    ]
    with warnings.catch_warnings(action="ignore"):  # that all maps have the same brush
        chart = alt.concat(*panels, columns=COLUMNS, data=alt.NamedData("points")).add_params(brush)
    coloured = f", coloured by {one.coloured}" if one.coloured else ""
    spec = {**chart.to_dict(), "datasets": {"points": _rows(one, rows)}}
    return Chart(name, spec, f"{len(rows)} texts of {one.task}, a map per model{coloured}.")


def _title(one: TextMap, model: str, method: str) -> alt.Title:
    import altair as alt

    if method == "tsne":
        return alt.Title(model, limit=SIZE)
    return alt.Title(model, limit=SIZE, subtitle=f"{100 * one.variance[model]:.0f} % of the variance")


def _rows(one: TextMap, rows: Sequence[int]) -> list[list[Any]]:
    """Return a list per text: what `ABOUT` names, then x and y of each model."""
    coordinates = [(points * UNIT).round().astype(int).tolist() for points in one.points.values()]
    found = []
    for row in rows:
        change = one.changes[row]
        about = [one.sample.ids[row], one.sample.texts[row].text, one.groups[row] if one.groups else ""]
        places = [value for model in coordinates for value in model[row]]
        found.append([*map(shortened, about), None if change is None else round(change, 1), *places])
    return found
