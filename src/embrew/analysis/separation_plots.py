"""Plot the cosines of matched and mismatched pairs, one panel per model and data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embrew.analysis.domain_knowledge import Figures
from embrew.analysis.plots import TWO, drawing
from embrew.analysis.separation import BINS, Separation

SHOWN = 25  # bins
KINDS = ("matched", "mismatched")


def plot_separations(named: Sequence[tuple[str, Sequence[Figures]]], path: Path) -> None:
    """Plot histograms of the cosines: one row per model, one column per data set with pairs."""
    columns = max(len([found for found in several if found.separation]) for _, several in named)
    if not columns:
        raise ValueError("no data set has pairs to plot; leave out --plot")
    with drawing(path, 4.8 * columns + 0.4, 3.6 * len(named)) as figure:
        grid = figure.subplots(len(named), columns, squeeze=False)
        for line, (name, several) in zip(grid, named, strict=True):
            shown = [found for found in several if found.separation]
            for axes, found in zip(line, shown, strict=False):
                assert found.separation is not None
                draw_separation(axes, found.separation)
                bits = "" if found.perplexity is None else f", {found.perplexity.bits_per_byte:.2f} bits per byte"
                axes.set_title(f"{name}: {found.name}\nd′ {found.separation.d_prime:.2f}{bits}")
            for axes in line[len(shown) :]:
                axes.set_visible(False)
        grid[0, 0].legend()


def draw_separation(axes: Any, found: Separation) -> None:
    """Draw both histograms, each normalised to 1, in about `SHOWN` bins over the range of values."""
    present = found.histograms.sum(0).nonzero()[0]
    low, high = present[0], present[-1] + 1
    width = max(1, -(-(high - low) // SHOWN))
    starts = np.arange(low, high, width)
    edges = [*BINS[starts], BINS[min(starts[-1] + width, len(BINS) - 1)]]
    for counts, kind, colour in zip(found.histograms, KINDS, TWO, strict=True):
        shares = np.add.reduceat(counts[:high], starts) / counts.sum()
        axes.stairs(shares, edges, color=colour, linewidth=1.4)
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.25, label=kind)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel("cosine")
    axes.set_ylabel("share of the pairs")
