"""Plot several runs: score against samples, with the Pareto front, and against epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embrew.analysis.efficiency import Curve, Moment, pareto
from embrew.analysis.plots import drawing, looks

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
    with drawing(path, 5.2 * (2 + spread), 4.8) as figure:
        panels: Any = figure.subplots(1, 2 + spread)
        for curve, look in zip(curves, looks([curve.name for curve in curves]), strict=True):
            _draw_curve(panels, curve, metric, {"color": look["color"], "marker": look["marker"]})
        _draw_front(panels[0], curves, metric)
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
            panels[2].locator_params(axis="x", nbins=6)
            panels[2].set_xlabel("uniformity (less is more evenly spread)")
            panels[2].set_ylabel("alignment (less is closer positives)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4))


def _draw_curve(panels: Any, curve: Curve, metric: str, look: dict[str, str]) -> None:
    """Draw one run in all panels."""
    scores = [moment.scores[metric] for moment in curve.moments]
    panels[0].plot([m.samples for m in curve.moments], scores, markersize=4, label=curve.name, **look)
    for stage, last in by_stage(curve):
        epochs = [moment.epochs for moment in stage]
        panels[1].plot(epochs, [m.scores[metric] for m in stage], "-" if last else "--", markersize=4, **look)
    if len(panels) > 2:
        track = [[moment.scores[name] for moment in curve.moments] for name in SPREAD]
        panels[2].plot(*track, linewidth=1, markevery=[-1], markersize=7, **look)


def _draw_front(axes: Any, curves: Sequence[Curve], metric: str) -> None:
    front = [(moment.samples, moment.scores[metric]) for _, moment in pareto(curves, metric)]
    look = {"color": "0.6", "linestyle": ":", "zorder": 0}
    axes.step(*zip(*front, strict=True), where="post", label="Pareto front", **look)
