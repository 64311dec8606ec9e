"""Plots of several models: spectra, similarity of memory tokens, alignment against uniformity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.files.writing import atomic_path

if TYPE_CHECKING:
    from embrew.analysis.spectrum import Spectrum
    from embrew.analysis.uniformity import AlignmentUniformity

FORMATS = (".png", ".pdf", ".svg")
FLOOR = 1e-10  # shares of the largest singular value below this are rounding errors
NUMBERS_UP_TO = 8  # maximum number of memory tokens for numbers in the cells


def check_format(path: Path) -> None:
    """Raise if the suffix of `path` is not a supported format."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: cannot write this format; choose from {', '.join(FORMATS)}")


def plot_spectra(named: Sequence[tuple[str, Spectrum]], path: Path) -> None:
    """Plot singular values as shares of the largest (logarithmic), and the number above the threshold."""
    figure = new_figure(8, 4.8)
    axes = figure.subplots()
    for name, spectrum in named:
        values = spectrum.singular_values / spectrum.singular_values[0]
        used = spectrum.summary()["effective_dimensions"]
        (line,) = axes.plot(
            np.arange(1, len(values) + 1), values.clip(min=FLOOR), label=f"{name}: {used} of {len(values)}"
        )
        axes.plot(used, values[used - 1], "o", color=line.get_color(), markersize=5)
    threshold = named[0][1].threshold
    if threshold:
        axes.axhline(threshold, color="0.5", linestyle="--", linewidth=1)
        transform = axes.get_yaxis_transform()  # x as a share of the axes, y in data
        axes.text(1, threshold * 1.15, f"{threshold:g}", transform=transform, ha="right", color="0.4", fontsize=9)
    axes.set_yscale("log")
    axes.set_ylim(top=1.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("principal component")
    axes.set_ylabel("singular value / largest")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="model: dimensions above the threshold", alignment="left")
    save_figure(figure, path)


def plot_memory(named: Sequence[tuple[str, np.ndarray, Sequence[int]]], path: Path) -> None:
    """Plot the similarities of memory tokens on one scale, with effective tokens in bold on the axes.

    Args:
        named: per model its name, `(k, k)` similarities and effective tokens.
        path: output file.
    """
    columns = min(len(named), 4)
    lines = -(-len(named) // columns)
    figure = new_figure(3.4 * columns + 0.8, 3.8 * lines, layout="compressed")
    grid = figure.subplots(lines, columns, squeeze=False)
    lowest = min(0.0, *(float(similarity.min()) for _, similarity, _ in named))
    for axes, (name, similarity, effective) in zip(grid.flat, named, strict=False):
        image = axes.imshow(similarity, vmin=lowest, vmax=1, cmap="viridis")
        k = len(similarity)
        axes.set_title(f"{name}\n{len(effective)} of {k} effective", fontsize=10)
        places = range(0, k, -(-k // 16))
        axes.set_xticks(places)
        axes.set_yticks(places)
        axes.tick_params(labelsize=8)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_fontweight("bold" if int(label.get_text()) in effective else "normal")
        if k <= NUMBERS_UP_TO:
            for (row, column), value in np.ndenumerate(similarity):
                dark = (value - lowest) / (1 - lowest) < 0.6
                colour = "white" if dark else "black"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    for axes in grid.flat[len(named) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=grid, label="mean cosine", shrink=0.8)
    save_figure(figure, path)


def plot_alignment_uniformity(named: Sequence[tuple[str, AlignmentUniformity]], path: Path) -> None:
    """Plot one point per model; lower left is better."""
    figure = new_figure(6.4, 5)
    axes = figure.subplots()
    for name, found in named:
        axes.plot(found.uniformity, found.alignment, "o", markersize=8)
        axes.annotate(name, (found.uniformity, found.alignment), (6, 6), textcoords="offset points", fontsize=9)
    axes.margins(0.2)
    axes.set_xlabel("uniformity (less is more evenly spread)")
    axes.set_ylabel("alignment (less is closer positives)")
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def new_figure(width: float, height: float, layout: str = "constrained") -> Any:
    """Return an empty figure; sizes in inches."""
    from matplotlib.figure import Figure  # not pyplot, which would set a backend for the whole process

    return Figure(figsize=(width, height), layout=layout)  # type: ignore[arg-type]


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure atomically."""
    check_format(path)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=130)
