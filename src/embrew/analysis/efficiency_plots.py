"""Plot several runs: score against samples, with the Pareto front, and against epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embrew.analysis.efficiency import Curve, Moment, pareto
from embrew.analysis.plots import new_figure, save_figure

SPREAD = ("uniformity", "alignment")


def by_stage(curve: Curve) -> Iterator[tuple[list[Moment], bool]]:
    """Return the evaluations of each stage, from the last one of the stage before, and whether it is the last stage."""
    for stage in dict.fromkeys(moment.stage for moment in curve.moments):
        own = [moment for moment in curve.moments if moment.stage == stage]
        first = curve.moments.index(own[0])
        if first:
            own.insert(0, replace(curve.moments[first - 1], stage=stage, step=0, epochs=0.0))
        yield own, stage == curve.moments[-1].stage


def plot_efficiency(curves: Sequence[Curve], metric: str, path: Path, *, mark: float | None = None) -> None:
    """Plot score against samples (logarithmic axis) and against epochs.

    Epochs are counted per stage, so each stage has a separate line; all but a run's last are dashed. If all runs have
    alignment and uniformity, a third panel shows them.

    Args:
        curves: the runs.
        metric: name of the score.
        path: output file.
        mark: a score to draw as a horizontal line.
    """
    spread = all(name in moment.scores for curve in curves for moment in curve.moments for name in SPREAD)
    figure = new_figure(5.2 * (2 + spread), 4.6)
    panels: Any = figure.subplots(1, 2 + spread)
    for curve in curves:
        scores = [moment.scores[metric] for moment in curve.moments]
        (line,) = panels[0].plot([m.samples for m in curve.moments], scores, "o-", markersize=4, label=curve.name)
        for stage, last in by_stage(curve):
            kind = "o-" if last else "o--"
            epochs = [moment.epochs for moment in stage]
            panels[1].plot(epochs, [m.scores[metric] for m in stage], kind, markersize=4, color=line.get_color())
        if spread:
            track = [[moment.scores[name] for moment in curve.moments] for name in SPREAD]
            panels[2].plot(*track, "-", color=line.get_color(), linewidth=1)
            panels[2].plot(track[0][-1], track[1][-1], "o", color=line.get_color(), markersize=7)
    front = pareto(curves, metric)
    panels[0].step(
        [moment.samples for _, moment in front],
        [moment.scores[metric] for _, moment in front],
        where="post",
        color="0.6",
        linestyle=":",
        label="Pareto front",
        zorder=0,
    )
    seen = [moment.samples for curve in curves for moment in curve.moments if moment.samples]
    panels[0].set_xscale("symlog", linthresh=min(seen, default=1))
    panels[0].set_xlim(left=0)
    panels[0].set_xlabel("samples seen")
    panels[1].set_xlabel("epochs of the stage")
    for axes in panels[:2]:
        axes.set_ylabel(metric)
        if mark is not None:
            axes.axhline(mark, color="0.5", linestyle="--", linewidth=1)
    if spread:
        panels[2].set_xlabel("uniformity (less is more evenly spread)")
        panels[2].set_ylabel("alignment (less is closer positives)")
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=9)
    save_figure(figure, path)
