"""Plots of surfaces and of truncation, one row or column per model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.analysis.plots import BESIDE, TWO, drawing, write_value

if TYPE_CHECKING:
    from embrew.analysis.surface import Cell, Surface
    from embrew.analysis.truncation import Truncation

PICKED = TWO[1]


def plot_surfaces(named: Sequence[tuple[str, Surface, Cell | None]], path: Path) -> None:
    """Plot four panels per model on common scales: heat map, score over layers, over time and over bytes.

    Args:
        named: per model its name, its surface, and the picked cell, if any.
        path: output file.
    """
    lowest = 100 * min(found.means.min() for _, found, _ in named)
    highest = 100 * max(found.means.max() for _, found, _ in named)
    margin = 0.04 * (highest - lowest) or 1
    with drawing(path, 11, 7.6 * len(named)) as figure:
        rows = figure.subplots(2 * len(named), 2, squeeze=False).reshape(len(named), 4)
        for row, (name, found, picked) in zip(rows, named, strict=True):
            row[0].set_title(name, loc="left", fontweight="bold")
            _heat_map(row[0], found, picked, lowest, highest)
            _curves(row[1], found, picked)
            _front(row[2], found, picked, by="milliseconds")
            _front(row[3], found, picked, by="bytes")
            for axes in row[1:]:
                axes.set_ylim(lowest - margin, highest + margin)
                axes.grid(axis="y")
                axes.set_ylabel("score × 100")


def plot_truncations(named: Sequence[tuple[str, Truncation]], path: Path) -> None:
    """Plot one panel per model: full and truncated vectors, and a line between the two points of a text."""
    columns = min(len(named), 3)
    lines = -(-len(named) // columns)
    with drawing(path, 5.2 * columns, 5.6 * lines) as figure:
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes, (name, found) in zip(grid.flat, named, strict=False):
            ends = np.stack([found.whole, found.truncated, np.full_like(found.whole, np.nan)], 1).reshape(-1, 2)
            axes.plot(*ends.T, color="black", alpha=0.15, linewidth=0.4, zorder=1)
            dots: dict[str, Any] = {"s": 5, "linewidths": 0, "zorder": 2, "rasterized": True}
            axes.scatter(*found.whole.T, color=TWO[0], label=f"all {found.width} dimensions", **dots)
            axes.scatter(*found.truncated.T, color=TWO[1], label=f"the first {found.dim}", **dots)
            axes.set_title(f"{name}\nmean distance {found.distance:.2f} ({found.share:.0%} of that between texts)")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            axes.set_aspect("equal", "datalim")
            axes.legend(loc="upper right", markerscale=3, frameon=True, framealpha=0.9)
        for axes in grid.flat[len(named) :]:
            axes.set_visible(False)


def _heat_map(axes: Any, found: Surface, picked: Cell | None, lowest: float, highest: float) -> None:
    scores = 100 * found.means
    image = axes.imshow(scores, vmin=lowest, vmax=highest, cmap="viridis", origin="lower", aspect="auto")
    axes.set_xticks(range(len(found.dims)), map(str, found.dims))
    axes.set_yticks(range(len(found.layers)), map(str, found.layers))
    axes.set_xlabel("dimensions")
    axes.set_ylabel("layers")
    if scores.size <= 120:
        for (i, j), score in np.ndenumerate(scores):
            write_value(axes, i, j, f"{score:.1f}", dark=(score - lowest) < 0.6 * (highest - lowest))
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
    axes.legend(title="dimensions", **BESIDE)


def _front(axes: Any, found: Surface, picked: Cell | None, *, by: str) -> None:
    """Draw every cell, and a line through the Pareto front."""
    times = by == "milliseconds"
    cells = found.cells
    values = found.dims if times else found.layers
    colours = dict(zip(values, _colours(len(values)), strict=True))
    points = [(getattr(cell, by), 100 * cell.score) for cell in cells]
    axes.scatter(*zip(*points, strict=True), s=20, c=[colours[cell.dim if times else cell.layers] for cell in cells])
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
        axes.set_xlabel("ms per text")
        return
    axes.set_xscale("log", base=2)
    sizes = _apart([4 * dim for dim in found.dims])
    axes.set_xticks(sizes, map(str, sizes))
    axes.minorticks_off()
    axes.set_xlabel("bytes per vector")
    handles = [axes.plot([], [], "o", color=colours[layer], markersize=4.5, label=str(layer))[0] for layer in values]
    axes.legend(handles=handles, title="layers", **BESIDE)


def _apart(sizes: Sequence[int]) -> list[int]:
    """Return the sizes that have room for a label on a logarithmic axis: the last, then each at most half the next."""
    kept = [sizes[-1]]
    for size in reversed(sizes):
        if size <= kept[0] / 2:
            kept.insert(0, size)
    return kept


def _colours(count: int) -> list[Any]:
    """Return colours from dark to light."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * i / max(count - 1, 1)) for i in range(count)]
