"""Charts of scores against costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embrew.report.chart import Chart, model_colours
from embrew.report.points import Cost, Point

AXES = {
    "milliseconds": "ms per text",
    "bytes": "bytes per vector",
    "minutes": "minutes of training",
    "samples": "training samples",
}
SIZE = 300  # pixels


def cost_charts(name: str, points: Sequence[Point], score: str, models: Sequence[str]) -> list[Chart]:
    """Return scores against the time per text, and against bytes per vector, with the Pareto front; those known."""
    charts = []
    for cost in ("milliseconds", "bytes"):
        rows = [
            {
                "model": point.model,
                "score": 100 * point.score,
                cost: getattr(point, cost),
                "size": point.size,
                "front": cost in point.fronts,
            }
            for point in points
            if getattr(point, cost) is not None
        ]
        if rows:
            what = f"{score}, against {AXES[cost]}; the line is the Pareto front."
            charts.append(Chart.of(f"{name}-{cost}", _scatter(rows, cost, score, models), what))
    return charts


def training_charts(costs: Sequence[Cost], score: str) -> list[Chart]:
    """Return scores against the time and the samples of training, of the models whose runs are known."""
    charts = []
    known: dict[str, list[float | None]] = {
        "minutes": [None if cost.seconds is None else cost.seconds / 60 for cost in costs],
        "samples": [cost.samples for cost in costs],
    }
    for quantity, values in known.items():
        rows = [
            {"model": cost.model, "score": 100 * cost.score, quantity: value, "size": "", "front": False}
            for cost, value in zip(costs, values, strict=True)
            if value is not None
        ]
        if rows:
            what = f"{score}, against {AXES[quantity]}."
            names = [cost.model for cost in costs]
            charts.append(Chart.of(f"cost-{quantity}", _scatter(rows, quantity, score, names), what))
    return charts


def _scatter(rows: list[dict[str, Any]], cost: str, score: str, models: Sequence[str]) -> Any:
    import altair as alt

    scale = alt.Scale(type="log") if cost == "bytes" else alt.Scale(zero=True)
    x = alt.X(f"{cost}:Q", title=AXES[cost], scale=scale)
    y = alt.Y("score:Q", title=score, scale=alt.Scale(zero=False))
    colour = alt.Color(
        "model:N", scale=alt.Scale(domain=list(models), range=model_colours(models)), legend=alt.Legend(title=None)
    )
    tooltip = [
        alt.Tooltip("model:N"),
        alt.Tooltip("size:N"),
        alt.Tooltip("score:Q", format=".2f"),
        alt.Tooltip(f"{cost}:Q", title=AXES[cost], format=",.4~g"),
    ]
    base = alt.Chart(alt.Data(values=rows))
    dots = base.mark_point(filled=True, size=60).encode(x=x, y=y, color=colour, tooltip=tooltip)
    layers = [dots]
    if any(row["front"] for row in rows):  # a layer without data has no extent
        line = base.transform_filter("datum.front").mark_line(strokeDash=[4, 3], color="#808080")
        layers.insert(0, line.encode(x=x, y=y))
    return alt.layer(*layers).properties(width=SIZE, height=SIZE)
