"""One style for all plots: a colour per method, a cycle for other series, and matplotlib's settings.

The colours are from the qualitative palettes of Okabe and Ito (2008) and of Paul Tol (SRON/EPS/TN/09-002, "bright",
"vibrant" and "muted"), with a grey and a violet. Each has a contrast of at least 3:1 with white and with the dark
background of the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle

CYCLE: tuple[str, ...] = (
    "#4477AA",  # blue
    "#999933",  # olive
    "#AA4499",  # purple
    "#EE6677",  # red
    "#D55E00",  # vermilion
    "#CC79A7",  # pink
    "#228833",  # green
)

# Colour of each published method and baseline, and words in the name of a series that name it. The first method of this
# order counts: "ESE on MiniLM" is ESE. Others, such as an objective of one's own, get a colour of `CYCLE`.
_METHODS = {
    "llm2comp": ("#4477AA", r"llm2comp"),
    "ese": ("#228833", r"ese|espresso"),
    "autoregembed": ("#999933", r"autoregembed"),
    "lbr": ("#EE6677", r"lbr"),
    "epic": ("#CC79A7", r"epic"),
    "llm2vec": ("#009988", r"llm2vec|mntp"),
    "llama2vec": ("#CC3311", r"llama2vec|ebae"),
    "matryoshka": ("#AA4499", r"matryoshka|mrl|2dmse"),
    "infonce": ("#D55E00", r"infonce|simcse|repllama"),
    "prompted": ("#8866EE", r"echo|prompteol|metaeol"),
    "untrained": ("#808080", r"untrained|^(?:baselines/)?(?:last[- ]token|(?:weighted[- ])?mean)$"),
    "stock": ("#EE3377", r"\S*minilm\S*|bge|gte|e5"),
}
METHODS: dict[str, str] = {method: colour for method, (colour, _) in _METHODS.items()}
_PATTERNS = {colour: re.compile(f"(?<![a-z0-9])(?:{words})(?![a-z0-9])") for colour, words in _METHODS.values()}


def colours(names: Sequence[str]) -> list[str]:
    """Return one colour per series of a plot: that of the method it names, otherwise one of `CYCLE` that is free."""
    methods = [
        next((colour for colour, pattern in _PATTERNS.items() if pattern.search(name.lower())), None) for name in names
    ]
    free = cycle([value for value in CYCLE if value not in methods] or CYCLE)
    return [method or next(free) for method in methods]


def matplotlib_settings() -> dict[str, str | bool | int | list[str]]:
    """Return settings for `matplotlib.rc_context`: colours, sizes of text in points, and SVG with text as text."""
    return {
        "axes.prop_cycle": f"cycler('color', {list(CYCLE)})",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.titlesize": 11,
        "axes.labelsize": 11,
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 10,
        "legend.fontsize": 10,
        "legend.frameon": False,
        "grid.color": "0.9",
        "savefig.dpi": 130,
        "savefig.facecolor": "white",
        "svg.fonttype": "none",
        "svg.hashsalt": "embrew",  # the same ids in each run
        "xtick.labelsize": 10,
        "ytick.labelsize": 10,
    }
