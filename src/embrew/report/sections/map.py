"""Map: the tasks' texts in two dimensions, side by side for the models."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from embrew.report.chart import Chart
from embrew.report.section import Figure, Section
from embrew.report.subject import Subject

if TYPE_CHECKING:
    from embrew.report.maps import TextMap

PLACES = 50_000  # points × models on the page
BYTES = 60  # of a text on the page
SIZE = 300  # of a map, in pixels
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
    """Return a text in one line of at most `BYTES` bytes."""
    line = " ".join(text.split())
    encoded = line.encode("utf-8", errors="replace")
    return line if len(encoded) <= BYTES else encoded[: BYTES - 3].decode("utf-8", errors="ignore") + "…"


def _shown(maps: Sequence[TextMap], most: int) -> list[list[int]]:
    """Return the rows of each map that the page has room for: all, or a seeded sample with the same share of each."""
    total = sum(len(one.sample.ids) for one in maps)
    share = min(1.0, most / total)
    return [
        sorted(random.Random(0).sample(range(len(one.sample.ids)), int(share * len(one.sample.ids)))) for one in maps
    ]


def _chart(name: str, one: TextMap, rows: Sequence[int], method: str) -> Chart:
    import altair as alt

    numbers = {model: number for number, model in enumerate(one.points)}
    brush = alt.selection_interval(name="brush", resolve="global")
    parse = {**dict.fromkeys(("id", "text", "group"), "string"), "change": "number"}
    parse |= {f"{axis}{number}": "number" for number in numbers.values() for axis in "xy"}
    data = alt.InlineData(name="points", values=_csv(one, rows), format=alt.CsvDataFormat(type="csv", parse=parse))
    reach = max(float(abs(points[list(rows)]).max()) for points in one.points.values()) * UNIT * 1.03
    scale = alt.Scale(domain=[-reach, reach], nice=False)
    tooltip = [alt.Tooltip("text:N"), alt.Tooltip("id:N")]
    colour: Any = alt.value("#4477AA")
    if one.groups:
        tooltip.append(alt.Tooltip("group:N", title="label" if one.coloured == "label" else "found"))
        domain = list(one.colours)
        colour = alt.Color("group:N", title=None, scale=alt.Scale(domain=domain, range=list(one.colours.values())))
    if any(change is not None for change in one.changes):
        tooltip.append(alt.Tooltip("change:Q", title="change of rank", format="+.1f"))
    panels = [
        alt.Chart(width=SIZE, height=SIZE, title=_title(one, model, method))
        .mark_circle(size=22)
        .encode(
            x=alt.X(f"x{number}:Q", axis=None, scale=scale),
            y=alt.Y(f"y{number}:Q", axis=None, scale=scale),
            color=colour,
            opacity=alt.condition(brush, alt.value(0.75), alt.value(0.06)),
            tooltip=tooltip,
        )
        .add_params(brush)
        for model, number in numbers.items()
    ]
    chart = alt.concat(*panels, columns=3, data=data)
    coloured = f", coloured by {one.coloured}" if one.coloured else ""
    return Chart.of(name, chart, f"{len(rows)} texts of {one.task}, a map per model{coloured}.")


def _title(one: TextMap, model: str, method: str) -> Any:
    if method == "tsne":
        return [model]
    return [model, f"{100 * one.variance[model]:.0f} % of the variance"]


def _csv(one: TextMap, rows: Sequence[int]) -> str:
    """Return id, text, group, change and coordinates as comma-separated values, shorter than JSON."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    count = len(one.points)
    writer.writerow(["id", "text", "group", "change", *(f"{axis}{number}" for number in range(count) for axis in "xy")])
    coordinates = [(points * UNIT).round().astype(int).tolist() for points in one.points.values()]
    for row in rows:
        group, change = one.groups[row] if one.groups else "", one.changes[row]
        places = [value for model in coordinates for value in model[row]]
        text = shortened(one.sample.texts[row].text)
        writer.writerow([one.sample.ids[row], text, group, "" if change is None else round(change, 1), *places])
    return buffer.getvalue()
