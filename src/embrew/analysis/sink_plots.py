"""Plot the attention of last tokens: the weight on the first token by layer, and on all parts of a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embrew.analysis.plots import drawing, looks
from embrew.analysis.sink import PARTS, Sink
from embrew.plot_style import CYCLE

COLOURS = (CYCLE[4], CYCLE[0], CYCLE[6], "0.7", "0.85", "0.3")
LABELS = {"first": "first token", "itself": "last token itself", "after": "after the text"}


def plot_sinks(named: Sequence[tuple[str, Sink]], path: Path) -> None:
    """Plot the first token's weight by depth, one line per model and prompt (left), and all parts' mean (right)."""
    with drawing(path, 11, 2 + max(3.4, 0.45 * len(named))) as figure:
        lines, bars = figure.subplots(1, 2)
        for (name, sink), look in zip(named, looks([name for name, _ in named]), strict=True):
            layers = len(sink.shares)
            depth = 100 * np.arange(1, layers + 1) / layers
            lines.plot(depth, sink.of("first"), markersize=4, label=name, **look)
        lines.set_xlabel("depth in percent of the layers")
        lines.set_ylabel("attention of the last token on the first")
        lines.set_ylim(0, 1)
        above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
        lines.legend(ncols=2, **above)
        left = np.zeros(len(named))
        for part, colour in zip(PARTS, COLOURS, strict=True):
            widths = np.array([sink.of(part).mean() for _, sink in named])
            bars.barh(range(len(named)), widths, height=0.6, left=left, color=colour, label=LABELS.get(part, part))
            left += widths
        bars.set_yticks(range(len(named)), [name for name, _ in named])
        bars.invert_yaxis()
        bars.set_xlim(0, 1)
        bars.set_xlabel("share of the last token's attention, mean over layers")
        bars.legend(ncols=3, **above)
