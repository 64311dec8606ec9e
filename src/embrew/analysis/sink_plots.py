"""Plot the attention of last tokens: the weight on the first token by layer, and on all parts of a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embrew.analysis.plots import new_figure, save_figure
from embrew.analysis.sink import PARTS, Sink

COLOURS = ("#b2182b", "#2166ac", "#4dac26", "#999999", "#dddddd", "#404040")
LABELS = {"first": "first token", "itself": "last token itself", "after": "after the text"}


def plot_sinks(named: Sequence[tuple[str, Sink]], path: Path) -> None:
    """Plot the first token's weight by depth, one line per model and prompt (left), and all parts' mean (right)."""
    figure = new_figure(11, 1.2 + max(3.6, 0.45 * len(named)))
    lines, bars = figure.subplots(1, 2)
    for name, sink in named:
        layers = len(sink.shares)
        lines.plot(100 * np.arange(1, layers + 1) / layers, sink.of("first"), "o-", markersize=3, label=name)
    lines.set_xlabel("depth in percent of the layers")
    lines.set_ylabel("share of the last token's attention on the first")
    lines.set_ylim(0, 1)
    lines.legend(frameon=False, fontsize=8)
    left = np.zeros(len(named))
    for part, colour in zip(PARTS, COLOURS, strict=True):
        widths = np.array([sink.of(part).mean() for _, sink in named])
        bars.barh(range(len(named)), widths, height=0.6, left=left, color=colour, label=LABELS.get(part, part))
        left += widths
    bars.set_yticks(range(len(named)), [name for name, _ in named], fontsize=8)
    bars.invert_yaxis()
    bars.set_xlim(0, 1)
    bars.set_xlabel("share, mean over layers")
    bars.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    for axes in (lines, bars):
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
