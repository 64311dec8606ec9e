"""Charts of the scores: differences from the base with their intervals, and the score of each seed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from embrew.comparison import Tested
from embrew.report.chart import Chart, model_colours
from embrew.report.score_rows import TaskRow

if TYPE_CHECKING:
    import altair as alt

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
TOGETHER = 4  # models that are drawn in one chart; of more, one is chosen
TASK_HEIGHT, MODEL_HEIGHT = 12, 12  # of a task, and of each model that is drawn in it, in pixels


def differences_chart(names: Sequence[str], rows: Sequence[TaskRow], best: str) -> Chart | None:
    """Return differences from the base with intervals, tasks from top to bottom; None if nothing was tested.

    Of many models, one is shown at a time, `best` first.
    """
    import altair as alt

    values = [_difference(row, name, test) for row in rows for name, test in zip(names, row.tests, strict=True) if test]
    if not values:
        return None
    base, *compared = names
    is_chosen = len(compared) > TOGETHER
    drawn = 1 if is_chosen else len(compared)
    where = {"y": _tasks(rows), **({"yOffset": alt.YOffset("model:N", sort=compared)} if drawn > 1 else {})}
    look = _look(names, compared)
    of_task = alt.Chart(alt.Data(values=values))
    if is_chosen:
        choice = alt.binding_select(options=compared, name="Model ")
        shown = alt.param("shown", value=best if best in compared else compared[0], bind=choice)
        of_task = of_task.transform_filter("datum.model === shown")
    whiskers = of_task.mark_rule(strokeWidth=2, aria=False).encode(
        **where, x=alt.X("low:Q", title="difference in points"), x2="high:Q", color=look["color"]
    )
    numbers = [alt.Tooltip(f"{name}:Q", format="+.2f") for name in ("difference", "low", "high")]
    points = of_task.mark_point(filled=True, opacity=1, size=60).encode(
        **where, **look, x="difference:Q", tooltip=["task:N", "model:N", *numbers, "outcome:N"]
    )
    zero = alt.Chart(alt.Data(values=[{"zero": 0}])).mark_rule(strokeDash=[3, 3], aria=False).encode(x="zero:Q")
    chart = (zero + whiskers + points).properties(height=_height(rows, drawn))
    return Chart.of(
        "differences",
        chart.add_params(shown) if is_chosen else chart,
        f"Score minus that of {base} in points, with 95 % intervals{', for one model at a time' if is_chosen else ''}.",
    )


def scores_chart(names: Sequence[str], rows: Sequence[TaskRow]) -> Chart:
    """Return the score of each seed as a point, tasks from top to bottom."""
    import altair as alt

    values = [
        {"task": _name(row), "model": name, "seed": seed, "score": _points(result.main_score)}
        for row in rows
        for name, results in zip(names, row.task.results, strict=True)
        for seed, result in enumerate(results, start=1)
    ]
    points = (
        alt.Chart(alt.Data(values=values), height=_height(rows, 1))
        .mark_point(filled=True, opacity=0.8, size=60)
        .encode(
            **_look(names, names),
            y=_tasks(rows),
            x=alt.X("score:Q", title="score × 100", scale=alt.Scale(zero=False)),
            tooltip=["task:N", "model:N", "seed:Q", alt.Tooltip("score:Q", format=".2f")],
        )
    )
    return Chart.of("seeds", points, "Scores of the models, one point per seed.")


def _difference(row: TaskRow, name: str, tested: Tested) -> dict[str, Any]:
    test = tested.test
    numbers = {"difference": _points(test.difference), "low": _points(test.low), "high": _points(test.high)}
    return {"task": _name(row), "model": name, **numbers, "outcome": tested.outcome}


def _look(names: Sequence[str], shown: Sequence[str]) -> dict[str, Any]:
    """Return colour and shape by model, the same in all charts of the models `names`."""
    import altair as alt

    colour, shape = dict(zip(names, model_colours(names), strict=True)), dict(zip(names, cycle(SHAPES)))
    scales = {"color": (alt.Color, colour), "shape": (alt.Shape, shape)}
    return {
        channel: kind("model:N", scale=alt.Scale(domain=list(shown), range=[look[name] for name in shown]))
        for channel, (kind, look) in scales.items()
    }


def _tasks(rows: Sequence[TaskRow]) -> alt.Y:
    import altair as alt

    return alt.Y("task:N", title=None, scale=alt.Scale(domain=[_name(row) for row in rows]))


def _name(row: TaskRow) -> str:
    return f"{row.task.first.task} {row.task.first.split}"


def _height(rows: Sequence[TaskRow], drawn: int) -> int:
    return len(rows) * (TASK_HEIGHT + drawn * MODEL_HEIGHT)


def _points(score: float) -> float:
    return round(100 * score, 3)
