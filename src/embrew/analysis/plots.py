"""Plots of several models: spectra, similarity of memory tokens, alignment against uniformity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.files.writing import atomic_path
from embrew.plot_style import CYCLE, colours, matplotlib_settings

if TYPE_CHECKING:
    from embrew.analysis.spectrum import Spectrum
    from embrew.analysis.uniformity import AlignmentUniformity

FORMATS = (".png", ".pdf", ".svg")
FLOOR = 1e-10  # shares of the largest singular value below this are rounding errors
LINES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D")  # of the series that share a colour
BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}  # a legend to the right of the axes
TWO = (CYCLE[0], CYCLE[4])  # colours of two series in contrast
NUMBERS_UP_TO = 8  # maximum number of memory tokens for numbers in the cells


def check_format(path: Path) -> None:
    """Raise if the suffix of `path` is not a supported format."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: cannot write this format; choose from {', '.join(FORMATS)}")


@contextmanager
def drawing(path: Path, width: float, height: float, *, layout: str = "constrained") -> Iterator[Any]:
    """Provide an empty figure in embrew's style, and write it atomically at the end; sizes in inches."""
    check_format(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # not pyplot, which would set a backend for the whole process

    with rc_context(matplotlib_settings()):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), layout=layout)  # type: ignore[arg-type]
        yield figure
        undated = {"Date": None} if path.suffix == ".svg" else None  # the same file for the same data
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], metadata=undated)


def looks(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return matplotlib's settings of each line of a plot: lines of one colour differ in dashes and marker."""
    chosen = colours(names)
    rounds = [chosen[:i].count(value) % len(LINES) for i, value in enumerate(chosen)]
    return [
        {"color": value, "linestyle": LINES[i], "marker": MARKERS[i]} for value, i in zip(chosen, rounds, strict=True)
    ]


def plot_spectra(named: Sequence[tuple[str, Spectrum]], path: Path) -> None:
    """Plot singular values as shares of the largest (logarithmic), and the number above the threshold."""
    with drawing(path, 8.6, 5) as figure:
        axes = figure.subplots()
        for (name, spectrum), look in zip(named, looks([name for name, _ in named]), strict=True):
            values = spectrum.singular_values / spectrum.singular_values[0]
            used = spectrum.summary()["effective_dimensions"]
            label = f"{name}: {used} of {len(values)}"
            markers = {"markevery": [used - 1], "markersize": 6}
            axes.plot(np.arange(1, len(values) + 1), values.clip(min=FLOOR), label=label, **look, **markers)
        threshold = named[0][1].threshold
        if threshold:
            axes.axhline(threshold, color="0.5", linestyle="--", linewidth=1)
            transform = axes.get_yaxis_transform()  # x as a share of the axes, y in data
            axes.text(1, threshold * 1.15, f"{threshold:g}", transform=transform, ha="right", color="0.4")
        axes.set_yscale("log")
        axes.set_ylim(top=1.6)
        axes.set_xlim(left=0)
        axes.set_xlabel("principal component")
        axes.set_ylabel("singular value / largest")
        axes.legend(title="model: dimensions above the threshold", alignment="left", **BESIDE)


def plot_memory(named: Sequence[tuple[str, np.ndarray, Sequence[int]]], path: Path) -> None:
    """Plot the similarities of memory tokens on one scale, with effective tokens in bold on the axes.

    Args:
        named: per model its name, `(k, k)` similarities and effective tokens.
        path: output file.
    """
    columns = min(len(named), 3)
    lines = -(-len(named) // columns)
    lowest = min(0.0, *(float(similarity.min()) for _, similarity, _ in named))
    with drawing(path, 3.4 * columns + 0.8, 3.8 * lines, layout="compressed") as figure:
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes, (name, similarity, effective) in zip(grid.flat, named, strict=False):
            image = axes.imshow(similarity, vmin=lowest, vmax=1, cmap="viridis")
            k = len(similarity)
            axes.set_title(f"{name}\n{len(effective)} of {k} effective")
            places = range(0, k, -(-k // 10))
            axes.set_xticks(places)
            axes.set_yticks(places)
            for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
                label.set_fontweight("bold" if int(label.get_text()) in effective else "normal")
            if k <= NUMBERS_UP_TO:
                for (row, column), value in np.ndenumerate(similarity):
                    write_value(axes, row, column, f"{value:.2f}", dark=(value - lowest) / (1 - lowest) < 0.6)
        for axes in grid.flat[len(named) :]:
            axes.set_visible(False)
        figure.colorbar(image, ax=grid, label="mean cosine", shrink=0.8)


def write_value(axes: Any, row: int, column: int, text: str, *, dark: bool) -> None:
    """Write a number into a cell of a heat map, readable on a dark or a light cell."""
    axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")


def plot_alignment_uniformity(named: Sequence[tuple[str, AlignmentUniformity]], path: Path) -> None:
    """Plot one point per model; lower left is better."""
    with drawing(path, 7.2, 4.8) as figure:
        axes = figure.subplots()
        for (name, found), look in zip(named, looks([name for name, _ in named]), strict=True):
            axes.plot(found.uniformity, found.alignment, markersize=9, label=name, **look | {"linestyle": ""})
        axes.margins(0.2)
        axes.set_xlabel("uniformity (less is more evenly spread)")
        axes.set_ylabel("alignment (less is closer positives)")
        axes.legend(**BESIDE)


def draw_bars(axes: Any, names: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
    """Draw horizontal bars with their numbers: one group per name, two bars per group, a label per bar of a group."""
    for (label, row), colour, shift in zip(values.items(), TWO, (-0.2, 0.2), strict=True):
        bars = axes.barh(np.arange(len(names)) + shift, row, height=0.38, label=label, color=colour)
        axes.bar_label(bars, fmt="%.3f", padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, max(0.05, 1.15 * max(map(max, values.values()))))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
