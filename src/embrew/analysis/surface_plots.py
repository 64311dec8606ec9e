"""Plots of surfaces and of truncation, one row or column per model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.analysis.plots import new_figure, save_figure

if TYPE_CHECKING:
    from embrew.analysis.surface import Cell, Surface
    from embrew.analysis.truncation import Truncation

PICKED = "#d62728"


def plot_surfaces(named: Sequence[tuple[str, Surface, Cell | None]], path: Path) -> None:
    """Plot one row per model on common scales: heat map, score over layers, over time and over bytes.

    Args:
        named: per model its name, its surface, and the picked cell, if any.
        path: output file.
    """
    figure = new_figure(19, 4.4 * len(named))
    rows = figure.subplots(len(named), 4, squeeze=False, width_ratios=[1.2, 1.1, 1, 1])
    lowest = 100 * min(found.means.min() for _, found, _ in named)
    highest = 100 * max(found.means.max() for _, found, _ in named)
    margin = 0.04 * (highest - lowest) or 1
    for row, (name, found, picked) in zip(rows, named, strict=True):
        row[0].set_title(name, loc="left", fontweight="bold")
        _heat_map(row[0], found, picked, lowest, highest)
        _curves(row[1], found, picked)
        _front(row[2], found, picked, by="milliseconds")
        _front(row[3], found, picked, by="bytes")
        for axes in row[1:]:
            axes.set_ylim(lowest - margin, highest + margin)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="0.92")
            axes.set_axisbelow(True)
            axes.set_ylabel("score")
    save_figure(figure, path)


def plot_truncations(named: Sequence[tuple[str, Truncation]], path: Path) -> None:
    """Plot one column per model: full and truncated vectors, and a line between the two points of a text."""
    figure = new_figure(5.4 * len(named), 5.6)
    for axes, (name, found) in zip(figure.subplots(1, len(named), squeeze=False)[0], named, strict=True):
        lines = np.stack([found.whole, found.truncated, np.full_like(found.whole, np.nan)], 1).reshape(-1, 2)
        axes.plot(*lines.T, color="black", alpha=0.15, linewidth=0.4, zorder=1)
        dots: dict[str, Any] = {"s": 5, "linewidths": 0, "zorder": 2}
        axes.scatter(*found.whole.T, color="#1f77b4", label=f"all {found.width} dimensions", **dots)
        axes.scatter(*found.truncated.T, color="#ff7f0e", label=f"the first {found.dim}", **dots)
        axes.set_title(
            f"{name}\nmean distance {found.distance:.2f} ({found.share:.0%} of that between texts)", fontsize=10
        )
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_aspect("equal", "datalim")
        axes.legend(loc="upper right", fontsize=8, markerscale=3, framealpha=0.9)
    save_figure(figure, path)


def _heat_map(axes: Any, found: Surface, picked: Cell | None, lowest: float, highest: float) -> None:
    scores = 100 * found.means
    image = axes.imshow(scores, vmin=lowest, vmax=highest, cmap="viridis", origin="lower", aspect="auto")
    axes.set_xticks(range(len(found.dims)), map(str, found.dims))
    axes.set_yticks(range(len(found.layers)), map(str, found.layers))
    axes.set_xlabel("dimensions")
    axes.set_ylabel("layers")
    if scores.size <= 120:
        for (i, j), score in np.ndenumerate(scores):
            dark = (score - lowest) < 0.6 * (highest - lowest)
            colour = "white" if dark else "black"
            axes.text(j, i, f"{score:.1f}", ha="center", va="center", fontsize=7.5, color=colour)
    if picked is not None:
        from matplotlib.patches import Rectangle

        corner = found.dims.index(picked.dim) - 0.5, found.layers.index(picked.layers) - 0.5
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=PICKED, linewidth=2, clip_on=False, zorder=3))
    axes.figure.colorbar(image, ax=axes, pad=0.02)


def _curves(axes: Any, found: Surface, picked: Cell | None) -> None:
    for j, (dim, colour) in enumerate(zip(found.dims, _colours(len(found.dims)), strict=True)):
        axes.plot(found.layers, 100 * found.means[:, j], "o-", color=colour, markersize=3.5, label=str(dim))
    if picked is not None:
        axes.plot(picked.layers, 100 * picked.score, "o", color=PICKED, markersize=11, fillstyle="none")
    axes.set_xlabel("layers")
    step = -(-len(found.layers) // 12)
    axes.set_xticks(found.layers[::-1][::step])
    axes.legend(title="dimensions", frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _front(axes: Any, found: Surface, picked: Cell | None, *, by: str) -> None:
    """Draw every cell, and a line through the Pareto front."""
    times = by == "milliseconds"
    cells = found.cells
    values = found.dims if times else found.layers
    colours = dict(zip(values, _colours(len(values)), strict=True))
    for cell in cells:
        colour = colours[cell.dim if times else cell.layers]
        axes.plot(getattr(cell, by), 100 * cell.score, "o", color=colour, markersize=4.5)
    front, best = [], float("-inf")
    for cell in sorted(cells, key=lambda cell: (getattr(cell, by), -cell.score)):
        if cell.score > best:
            front.append((getattr(cell, by), 100 * cell.score))
            best = cell.score
    end = (max(getattr(cell, by) for cell in cells), 100 * best)
    axes.step(*zip(*front, end, strict=True), where="post", color="0.35", linewidth=1, zorder=1)
    if picked is not None:
        axes.plot(getattr(picked, by), 100 * picked.score, "o", color=PICKED, markersize=11, fillstyle="none")
    if times:
        axes.set_xlim(left=0)
        axes.set_xlabel("milliseconds per text")
        return
    axes.set_xscale("log", base=2)
    axes.set_xticks([4 * dim for dim in found.dims], [str(4 * dim) for dim in found.dims], fontsize=8)
    axes.set_xlabel("bytes a vector")
    handles = [axes.plot([], [], "o", color=colours[layer], markersize=4.5, label=str(layer))[0] for layer in values]
    axes.legend(handles=handles, title="layers", frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _colours(count: int) -> list[Any]:
    """Return colours from dark to light."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.92 * i / max(count - 1, 1)) for i in range(count)]
