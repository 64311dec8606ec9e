"""Plots of the analyses, several models or runs in one figure, in embrew's style."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from embrew.analysis.demonstrations import DemonstrationCost
from embrew.analysis.domain_knowledge import BINS, Figures, Separation
from embrew.analysis.efficiency import Curve, Evaluation, pareto
from embrew.analysis.memory import MemoryTokens
from embrew.analysis.sink import Sink
from embrew.analysis.spectrum import Spectrum
from embrew.analysis.surface import Cell, Surface, Truncation
from embrew.analysis.uniformity import AlignmentUniformity
from embrew.extras import import_extra
from embrew.files.writing import atomic_path
from embrew.plot_style import CYCLE, colours, matplotlib_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")
FLOOR = 1e-10  # shares of the largest singular value below this are rounding errors
LINES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D")  # of the series that share a colour
LEGEND_BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}  # a legend to the right of the axes
CONTRAST = (CYCLE[0], CYCLE[4])  # colours of two series
NUMBERS_UP_TO = 8  # maximum number of memory tokens for numbers in the cells
COLUMNS = 3  # maximum number of panels in a row, one per model
DRAWN_BINS = 25  # approximate number of bins of a histogram
SPREAD = ("uniformity", "alignment")
AXES = {"uniformity": "uniformity (less is more evenly spread)", "alignment": "alignment (less is closer positives)"}


@contextmanager
def drawing(path: Path, width: float, height: float, *, layout: str = "constrained") -> Iterator[Figure]:
    """Provide an empty figure in embrew's style, and write it atomically at the end; sizes in inches."""
    import_extra("matplotlib", "plots", "a picture")
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # not pyplot, which would set a backend for the whole process

    with rc_context(matplotlib_settings()):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), layout=layout)  # type: ignore[arg-type]
        yield figure
        undated = {"Date": None} if path.suffix == ".svg" else None  # the same file for the same data
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], metadata=undated)


def line_styles(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return matplotlib's settings of each line of a plot: lines of one colour differ in dashes and marker."""
    chosen = colours(names)
    rounds = [chosen[:i].count(value) % len(LINES) for i, value in enumerate(chosen)]
    return [
        {"color": value, "linestyle": LINES[i], "marker": MARKERS[i]} for value, i in zip(chosen, rounds, strict=True)
    ]


def _styled(named: Sequence[tuple[str, T]]) -> Iterator[tuple[str, T, dict[str, Any]]]:
    """Yield each name with what it names, and the settings of its line."""
    for (name, drawn), style in zip(named, line_styles([name for name, _ in named]), strict=True):
        yield name, drawn, style


def plot_spectra(named: Sequence[tuple[str, Spectrum]], path: Path) -> None:
    """Plot singular values as shares of the largest (logarithmic), and the number above the threshold."""
    with drawing(path, 8.6, 5) as figure:
        axes = figure.subplots()
        for name, spectrum, style in _styled(named):
            values = spectrum.singular_values / spectrum.singular_values[0]
            used = spectrum.effective_dimensions
            label = f"{name}: {used} of {len(values)}"
            markers: dict[str, Any] = {"markevery": [used - 1], "markersize": 6}
            axes.plot(np.arange(1, len(values) + 1), values.clip(min=FLOOR), label=label, **style, **markers)
        threshold = named[0][1].threshold
        if threshold:
            axes.axhline(threshold, color="0.5", linestyle="--", linewidth=1)
            transform = axes.get_yaxis_transform()  # x as a share of the axes, y in data
            axes.text(1, threshold * 1.15, f"{threshold:g}", transform=transform, ha="right", color="0.4")
        axes.set(yscale="log", xlabel="principal component", ylabel="singular value / largest")
        axes.set_ylim(top=1.6)
        axes.set_xlim(left=0)
        axes.legend(title="model: dimensions above the threshold", alignment="left", **LEGEND_BESIDE)


def plot_memory(named: Sequence[tuple[str, MemoryTokens]], path: Path) -> None:
    """Plot the similarities of memory tokens on one scale, with effective tokens in bold on the axes."""
    lowest = min(0.0, *(float(tokens.similarity.min()) for _, tokens in named))
    with _panels(path, len(named), 3.4, 3.8, beside=0.8, layout="compressed") as (figure, grid):
        for axes, (name, tokens) in zip(grid, named, strict=True):
            similarity, effective = tokens.similarity, tokens.effective
            image = axes.imshow(similarity, vmin=lowest, vmax=1, cmap="viridis")
            k = len(similarity)
            ticks = range(0, k, -(-k // 10))
            axes.set(title=f"{name}\n{len(effective)} of {k} effective", xticks=ticks, yticks=ticks)
            for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
                label.set_fontweight("bold" if int(label.get_text()) in effective else "normal")
            if k <= NUMBERS_UP_TO:
                _write_values(axes, similarity, "{:.2f}", lowest, 1)
        figure.colorbar(image, ax=grid, label="mean cosine", shrink=0.8)


def plot_alignment_uniformity(named: Sequence[tuple[str, AlignmentUniformity]], path: Path) -> None:
    """Plot one point per model; lower left is better."""
    with drawing(path, 7.2, 4.8) as figure:
        axes = figure.subplots()
        for name, point, style in _styled(named):
            axes.plot(point.uniformity, point.alignment, markersize=9, label=name, **style | {"linestyle": ""})
        axes.margins(0.2)
        axes.set(xlabel=AXES["uniformity"], ylabel=AXES["alignment"])
        axes.legend(**LEGEND_BESIDE)


def plot_sinks(named: Sequence[tuple[str, Sink]], path: Path) -> None:
    """Plot the first token's weight by depth, one line per model and prompt."""
    with drawing(path, 8.6, 4.8) as figure:
        axes = figure.subplots()
        for name, sink, style in _styled(named):
            depth = 100 * np.arange(1, len(sink.shares) + 1) / len(sink.shares)
            axes.plot(depth, sink.share_of("first"), markersize=4, label=name, **style)
        axes.set(
            xlabel="depth in percent of the layers", ylabel="attention of the last token on the first", ylim=(0, 1)
        )
        axes.legend(**LEGEND_BESIDE)


def plot_efficiency(curves: Sequence[Curve], path: Path, *, mark: float | None = None) -> None:
    """Plot score against samples (logarithmic axis) with the Pareto front, and against epochs.

    Epochs are counted per stage, so each stage has a separate line; all but a run's last are dashed. If all runs have
    alignment and uniformity, a third panel shows them.

    Args:
        curves: the runs.
        path: output file.
        mark: a score to draw as a horizontal line.
    """
    evaluations = [evaluation for curve in curves for evaluation in curve.evaluations]
    spread = all(name in evaluation.scores for evaluation in evaluations for name in SPREAD)
    with drawing(path, 5.2 * (2 + spread), 4.8) as figure:
        samples, epochs, *others = figure.subplots(1, 2 + spread)
        for curve, line in zip(curves, line_styles([curve.name for curve in curves]), strict=True):
            style = {"color": line["color"], "marker": line["marker"]}
            samples.plot(*_points(curve.evaluations, "samples"), markersize=4, label=curve.name, **style)
            for stage, last in by_stage(curve):
                epochs.plot(*_points(stage, "epochs"), "-" if last else "--", markersize=4, **style)
            for axes in others:
                spreads = [[evaluation.scores[name] for evaluation in curve.evaluations] for name in SPREAD]
                axes.plot(*spreads, linewidth=1, markevery=[-1], markersize=7, **style)
                axes.locator_params(axis="x", nbins=6)
                axes.set(xlabel=AXES["uniformity"], ylabel=AXES["alignment"])
        front = _points([evaluation for _, evaluation in pareto(curves)], "samples")
        samples.step(*front, where="post", label="Pareto front", color="0.6", linestyle=":", zorder=0)
        samples.set_xscale("symlog", linthresh=min((m.samples for m in evaluations if m.samples), default=1))
        samples.set_xlim(left=0)
        samples.set(xlabel="samples seen", ylabel="dev")
        epochs.set(xlabel="epochs of the stage", ylabel="dev")
        if mark is not None:
            for axes in (samples, epochs):
                axes.axhline(mark, color="0.5", linestyle="--", linewidth=1)
        handles, labels = samples.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4))


def plot_demonstrations(named: Sequence[tuple[str, float | None, Sequence[DemonstrationCost]]], path: Path) -> None:
    """Plot score, time per text, tokens per text by number of demonstrations, and seconds of training as bars."""
    panels = {"score": "mean score", "milliseconds": "ms per text", "tokens": "tokens per text"}
    with drawing(path, 15, 4.6) as figure:
        *grid, bars = figure.subplots(1, 4)
        for (name, _, costs), style in zip(named, line_styles([name for name, *_ in named]), strict=True):
            for axes, (key, title) in zip(grid, panels.items(), strict=True):
                counts, values = [cost.count for cost in costs], [getattr(cost, key) for cost in costs]
                axes.plot(counts, values, label=name, **style)
                axes.set(xlabel="demonstrations", ylabel=title, ylim=(0, None) if key != "score" else None)
        trained = [(name, seconds) for name, seconds, _ in named if seconds is not None]
        bars.bar([name for name, _ in trained], [seconds for _, seconds in trained], color=CYCLE[0])
        bars.set(ylabel="seconds of training", xlabel="" if trained else "no run.json: not known")
        bars.tick_params(axis="x", rotation=20)
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4))


def _points(evaluations: Sequence[Evaluation], name: str) -> tuple[list[float], list[float]]:
    """Return x (samples or epochs) and scores of some evaluations."""
    return [getattr(evaluation, name) for evaluation in evaluations], [evaluation.score for evaluation in evaluations]


def by_stage(curve: Curve) -> Iterator[tuple[list[Evaluation], bool]]:
    """Return the evaluations of each stage, from the last one of the stage before, and whether it is the last stage."""
    for stage in dict.fromkeys(evaluation.stage for evaluation in curve.evaluations):
        evaluations = [evaluation for evaluation in curve.evaluations if evaluation.stage == stage]
        first = curve.evaluations.index(evaluations[0])
        if first:
            evaluations.insert(0, replace(curve.evaluations[first - 1], stage=stage, step=0, epochs=0.0))
        yield evaluations, stage == curve.evaluations[-1].stage


def plot_separations(named: Sequence[tuple[str, Sequence[Figures]]], path: Path) -> None:
    """Plot histograms of the cosines: one row per model, one column per data set with pairs."""
    columns = sum(each.separation is not None for each in named[0][1])
    with drawing(path, 4.8 * columns + 0.4, 3.6 * len(named)) as figure:
        grid = figure.subplots(len(named), columns, squeeze=False)
        for line, (name, figures) in zip(grid, named, strict=True):
            of_pairs = [(each, each.separation) for each in figures if each.separation is not None]
            for axes, (each, separation) in zip(line, of_pairs, strict=True):
                draw_separation(axes, separation)
                bits = "" if each.perplexity is None else f", {each.perplexity.bits_per_byte:.2f} bits per byte"
                axes.set_title(f"{name}: {each.name}\nd′ {separation.d_prime:.2f}{bits}")
        grid[0, 0].legend()


def draw_separation(axes: Axes, separation: Separation) -> None:
    """Draw both histograms, each normalised to 1, in about `DRAWN_BINS` bins over the range of values."""
    present = separation.histograms.sum(0).nonzero()[0]
    width = max(1, -(-(present[-1] + 1 - present[0]) // DRAWN_BINS))
    edges = BINS[np.arange(present[0], present[-1] + 1 + width, width).clip(max=len(BINS) - 1)]
    for counts, kind, colour in zip(separation.histograms, ("matched", "mismatched"), CONTRAST, strict=True):
        shares = np.histogram((BINS[1:] + BINS[:-1]) / 2, edges, weights=counts / counts.sum())[0]
        axes.stairs(shares, edges, color=colour, linewidth=1.4)
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.25, label=kind)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", nbins=6)
    axes.set(xlabel="cosine", ylabel="share of the pairs")


def plot_surfaces(named: Sequence[tuple[str, Surface, Cell | None]], path: Path) -> None:
    """Plot three panels per model: scores by layers and dimensions, over dimensions, and over time.

    Args:
        named: per model its name, its surface, and the picked cell, if any.
        path: output file.
    """
    lowest = 100 * min(surface.means.min() for _, surface, _ in named)
    highest = 100 * max(surface.means.max() for _, surface, _ in named)
    margin = 0.04 * (highest - lowest) or 1
    with drawing(path, 16, 3.8 * len(named)) as figure:
        rows = figure.subplots(len(named), 3, squeeze=False, width_ratios=(1.2, 1, 1))
        for (heat, sizes, times), (name, surface, picked) in zip(rows, named, strict=True):
            heat.set_title(name, loc="left", fontweight="bold")
            _heat_map(heat, surface, picked, lowest, highest)
            _score_lines(sizes, surface.dims, dict(zip(surface.layers, surface.means, strict=True)), legend="layers")
            sizes.set(xscale="log", xlabel="dimensions")
            sizes.set_xticks(surface.dims[:: -(-len(surface.dims) // 6)])
            sizes.xaxis.set_major_formatter("{x:.0f}")
            sizes.minorticks_off()
            of_dims = dict(zip(surface.dims, surface.means.T, strict=True))
            _score_lines(times, surface.milliseconds, of_dims, legend="dimensions")
            times.set_xlim(left=0)
            times.set_xlabel("ms per text")
            for axes in (sizes, times):
                axes.set_ylim(lowest - margin, highest + margin)
            if picked is not None:
                circle: dict[str, Any] = {"color": CONTRAST[1], "markersize": 11, "fillstyle": "none"}
                sizes.plot(picked.dim, 100 * picked.score, "o", **circle)
                times.plot(picked.milliseconds, 100 * picked.score, "o", **circle)


def _heat_map(axes: Axes, surface: Surface, picked: Cell | None, lowest: float, highest: float) -> None:
    scores = 100 * surface.means
    image = axes.imshow(scores, vmin=lowest, vmax=highest, cmap="viridis", origin="lower", aspect="auto")
    axes.set_xticks(range(len(surface.dims)), map(str, surface.dims))
    labelled = _thinned(len(surface.layers), 12)
    axes.set_yticks(labelled, [str(surface.layers[row]) for row in labelled])
    axes.set(xlabel="dimensions", ylabel="layers")
    if scores.size <= 120:
        _write_values(axes, scores, "{:.1f}", lowest, highest)
    if picked is not None:
        from matplotlib.patches import Rectangle

        corner = surface.dims.index(picked.dim) - 0.5, surface.layers.index(picked.layers) - 0.5
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=CONTRAST[1], linewidth=2, clip_on=False, zorder=3))
    axes.figure.colorbar(image, ax=axes, pad=0.02)


def _thinned(count: int, maximum: int) -> range:
    """Return the positions of at most `maximum` of `count` entries at equal distances, the last one among them."""
    step = -(-count // maximum)
    return range((count - 1) % step, count, step)


def _write_values(axes: Axes, values: np.ndarray, form: str, lowest: float, highest: float) -> None:
    """Write the numbers into the cells of a heat map, readable on dark and light cells."""
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value - lowest < 0.6 * (highest - lowest) else "black"
        axes.text(column, row, form.format(value), ha="center", va="center", fontsize=8, color=colour)


def _score_lines(axes: Axes, x: Sequence[float], lines: Mapping[int, np.ndarray], *, legend: str) -> None:
    """Draw a line per number of layers or dimensions, from dark to light."""
    from matplotlib import colormaps

    named = _thinned(len(lines), 10)
    for number, (value, scores) in enumerate(lines.items()):
        colour = colormaps["viridis"](0.85 * number / max(len(lines) - 1, 1))
        axes.plot(x, 100 * scores, "o-", color=colour, markersize=3.5, label=str(value) if number in named else None)
    axes.set_ylabel("score × 100")
    axes.grid(axis="y")
    axes.legend(title=legend, **LEGEND_BESIDE)


def plot_truncations(named: Sequence[tuple[str, Truncation]], path: Path) -> None:
    """Plot one panel per model: full and truncated vectors, and a line between the two points of a text."""
    with _panels(path, len(named), 5.2, 5.6) as (_, grid):
        for axes, (name, plane) in zip(grid, named, strict=True):
            ends = np.stack([plane.full, plane.truncated, np.full_like(plane.full, np.nan)], 1).reshape(-1, 2)
            axes.plot(*ends.T, color="black", alpha=0.15, linewidth=0.4, zorder=1)
            dots: dict[str, Any] = {"s": 5, "linewidths": 0, "zorder": 2, "rasterized": True}
            axes.scatter(*plane.full.T, color=CONTRAST[0], label=f"all {plane.width} dimensions", **dots)
            axes.scatter(*plane.truncated.T, color=CONTRAST[1], label=f"the first {plane.dim}", **dots)
            axes.set_title(f"{name}\nmean distance {plane.distance:.2f} ({plane.share:.0%} of that between texts)")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_aspect("equal", "datalim")
            axes.legend(loc="upper right", markerscale=3, frameon=True, framealpha=0.9)


@contextmanager
def _panels(
    path: Path, count: int, width: float, height: float, *, beside: float = 0, layout: str = "constrained"
) -> Iterator[tuple[Figure, np.ndarray]]:
    """Provide a figure and `count` of its axes, up to three in a row; sizes of each in inches."""
    columns = min(count, COLUMNS)
    lines = -(-count // columns)
    with drawing(path, width * columns + beside, height * lines, layout=layout) as figure:
        grid = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes in grid[count:]:
            axes.set_visible(False)
        yield figure, grid[:count]
