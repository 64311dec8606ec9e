"""Charts of the section on geometry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from embrew.plot_style import METHODS
from embrew.report.chart import Chart, model_colours
from embrew.report.lengths import RESIDUAL, LengthScore, labels

if TYPE_CHECKING:
    import altair as alt

Measured = Mapping[str, Mapping[str, Any]]  # figures by model

TASKS = 3  # with histograms of cosines
LENGTH_TASKS = 6  # with scores by length
MEMORY = 16  # memory tokens up to which their cosines are drawn
GREY = METHODS["untrained"]
WIDTH, HEIGHT = 720, 260  # of one chart, in pixels
SMALL = (220, 130)  # of one of several


def colour_by_model(names: Sequence[str]) -> alt.Color:
    """Return the encoding with one colour per model, the same in all charts."""
    import altair as alt

    return alt.Color("model:N", title=None, scale=alt.Scale(domain=list(names), range=model_colours(names)))


def spectrum_chart(names: Sequence[str], measured: Measured) -> Chart:
    """Return singular values against their ranks."""
    import altair as alt

    rows = [
        {"model": name, "rank": rank, "share": _short(share)}
        for name, each in measured.items()
        for rank, share in zip(each["spectrum"]["ranks"], each["spectrum"]["shares"], strict=True)
        if share > 1e-9
    ]
    chart = (
        alt.Chart(alt.Data(values=rows), width=WIDTH, height=HEIGHT)
        .mark_line()
        .encode(
            x=alt.X(
                "rank:Q",
                title="rank of the singular value",
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(grid=False),
            ),
            y=alt.Y(
                "share:Q",
                title="share of the variance per dimension",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(format="~p", grid=False, tickCount=5),
            ),
            color=colour_by_model(names),
            tooltip=[alt.Tooltip("model:N"), alt.Tooltip("rank:Q"), alt.Tooltip("share:Q", format=".3~p")],
        )
    )
    return Chart.of("spectrum", chart, "Singular values of the covariance of each model's vectors, largest first.")


def cosines_chart(names: Sequence[str], measured: Measured, tasks: Sequence[str]) -> Chart:
    """Return histograms of the cosines of right and wrong pairs, by task and model."""
    import altair as alt

    rows = [
        {"task": task, "model": name, "pairs": pairs, "cosine": _short(low + i * step), "share": _short(share / step)}
        for task in tasks
        for name, each in measured.items()
        if (found := each["separation"].get(task))
        for low, step in [(found["first"], found["step"])]
        for pairs in ("right", "wrong")
        for i, share in enumerate(found[pairs])
    ]
    base = alt.Chart(width=SMALL[0], height=SMALL[1]).encode(
        x=alt.X("cosine:Q", title="cosine"),
        y=alt.Y(
            "share:Q",
            title="share per unit of cosine",
            stack=None,
            axis=alt.Axis(labels=False, ticks=False, grid=False, titleFontWeight="normal", titleFontSize=10),
        ),
    )
    sides = {"model": names, "task": tasks}
    across, rows_by = sorted(sides, key=lambda side: len(sides[side]))  # the fewer side by side
    right = base.mark_area(interpolate="step-after", opacity=0.6).encode(color=colour_by_model(names))
    wrong = base.mark_line(interpolate="step-after", strokeDash=[3, 2], color=GREY, strokeWidth=1.5)
    chart = (
        alt.layer(right.transform_filter("datum.pairs == 'right'"), wrong.transform_filter("datum.pairs == 'wrong'"))
        .facet(
            row=alt.Row(f"{rows_by}:N", title=None, sort=list(sides[rows_by]), header=alt.Header(labelLimit=SMALL[1])),
            column=alt.Column(
                f"{across}:N", title=None, sort=list(sides[across]), header=alt.Header(labelLimit=SMALL[0])
            ),
            data=alt.Data(values=rows),
        )
        .resolve_scale(y="independent")
    )
    return Chart.of("cosines", chart, "Cosines of right pairs (filled) and of wrong pairs (dashed), by task and model.")


def lengths_chart(names: Sequence[str], scores: Sequence[LengthScore]) -> Chart:
    """Return scores by number of words with 95 % intervals, one chart per task."""
    import altair as alt

    charts = []
    for task in dict.fromkeys(score.task for score in scores):
        of_task = [score for score in scores if score.task == task]
        values = [
            {**score._asdict(), **{name: _short(getattr(score, name)) for name in ("score", "low", "high")}}
            for score in of_task
        ]
        x = alt.X(
            "words:O",
            title=f"words per {of_task[0].of}",
            sort=labels(),
            axis=alt.Axis(labelAngle=0),
            scale=alt.Scale(domain=[name for name in labels() if any(score.words == name for score in of_task)]),
        )
        metric = of_task[0].metric
        y_title = f"{metric}, lower is better" if metric == RESIDUAL else f"mean {metric}"
        base = alt.Chart(alt.Data(values=values), width=320, height=180, title=alt.Title(task, limit=320))
        offset = alt.XOffset("model:N", sort=list(names))
        bars = base.mark_rule().encode(x=x, xOffset=offset, y="low:Q", y2="high:Q", color=colour_by_model(names))
        points = base.mark_point(filled=True, size=45).encode(
            x=x,
            xOffset=offset,
            y=alt.Y("score:Q", title=y_title, scale=alt.Scale(zero=False)),
            color=colour_by_model(names),
            tooltip=["model:N", "words:O", alt.Tooltip("score:Q", format=".3f"), "examples:Q"],
        )
        charts.append(bars + points)
    return Chart.of(
        "lengths",
        alt.concat(*charts, columns=2).resolve_scale(xOffset="independent"),
        "Scores by the length of the texts in words, with 95 % intervals.",
    )


def memory_chart(measured: Measured) -> Chart:
    """Return the cosines between memory tokens, one square per model."""
    import altair as alt

    rows = [
        {"model": name, "one": i + 1, "other": j + 1, "cosine": _short(cosine)}
        for name, each in measured.items()
        for i, line in enumerate(each["memory"]["similarity"])
        for j, cosine in enumerate(line)
    ]
    chart = (
        alt.Chart(width=SMALL[0], height=SMALL[0])
        .mark_rect()
        .encode(
            x=alt.X("one:O", title="memory token", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("other:O", title="memory token"),
            color=alt.Color("cosine:Q", title="mean cosine", scale=alt.Scale(scheme="viridis", domainMax=1)),
            tooltip=["model:N", "one:O", "other:O", alt.Tooltip("cosine:Q", format=".3f")],
        )
        .facet(
            facet=alt.Facet("model:N", title=None, header=alt.Header(labelLimit=SMALL[0])),
            columns=3,
            data=alt.Data(values=rows),
        )
    )
    return Chart.of("memory", chart, "Mean cosine between the states of each model's memory tokens.")


def sink_chart(names: Sequence[str], measured: Measured) -> Chart:
    """Return the last token's attention on the first token by layer."""
    import altair as alt

    rows = [
        {"model": name, "layer": layer, "depth": depth, "weight": _short(weight)}
        for name, each in measured.items()
        for layer, depth, weight in zip(
            each["sink"]["layers"], each["sink"]["depth_percent"], each["sink"]["shares"]["first"], strict=True
        )
    ]
    chart = (
        alt.Chart(alt.Data(values=rows), width=WIDTH, height=HEIGHT)
        .mark_line(point=True)
        .encode(
            x=alt.X("depth:Q", title="depth of the layer (% of all layers)", scale=alt.Scale(domain=[0, 100])),
            y=alt.Y(
                "weight:Q",
                title="attention of the last token on the first one",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="~p"),
            ),
            color=colour_by_model(names),
            tooltip=["model:N", "layer:Q", alt.Tooltip("weight:Q", format=".1%")],
        )
    )
    return Chart.of("sink", chart, "Share of the last token's attention that goes to the first token, by layer.")


def _short(value: float) -> float:
    return float(f"{value:.4g}")
