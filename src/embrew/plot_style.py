"""One style for all plots: a colour per method, a cycle for other series, and matplotlib's settings.

The colours are from the qualitative palettes of Okabe and Ito (2008) and of Paul Tol (SRON/EPS/TN/09-002, "bright",
"vibrant" and "muted"), with a grey and a violet. Each has a contrast of at least 3:1 with white and with the dark
background of the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle
from typing import Any

CYCLE: tuple[str, ...] = (
    "#4477AA",  # blue
    "#999933",  # olive
    "#AA4499",  # purple
    "#EE6677",  # red
    "#D55E00",  # vermilion
    "#CC79A7",  # pink
    "#228833",  # green
)

METHODS: dict[str, str] = {
    "llm2comp": "#4477AA",
    "ese": "#228833",
    "autoregembed": "#999933",
    "lbr": "#EE6677",
    "epic": "#CC79A7",
    "llm2vec": "#009988",
    "llama2vec": "#CC3311",
    "matryoshka": "#AA4499",
    "infonce": "#D55E00",
    "prompted": "#8866EE",
    "untrained": "#808080",
    "stock": "#EE3377",
}

# Words in the name of a series that name its method. The first method of this order counts: "ESE on MiniLM" is ESE.
_WORDS = {
    "llm2comp": r"llm2comp",
    "ese": r"ese|espresso",
    "autoregembed": r"autoregembed",
    "lbr": r"lbr",
    "epic": r"epic",
    "llm2vec": r"llm2vec|mntp",
    "llama2vec": r"llama2vec|ebae",
    "matryoshka": r"matryoshka|mrl|2dmse",
    "infonce": r"infonce|simcse|repllama",
    "prompted": r"echo|prompteol|metaeol",
    "untrained": r"untrained|^(?:baselines/)?(?:last[- ]token|(?:weighted[- ])?mean)$",
    "stock": r"\S*minilm\S*|bge|gte|e5",
}
_PATTERNS = {method: re.compile(f"(?<![a-z0-9])(?:{words})(?![a-z0-9])") for method, words in _WORDS.items()}


def colours(names: Sequence[str]) -> list[str]:
    """Return one colour per series of a plot: that of the method it names, otherwise one of `CYCLE` that is free."""
    methods = [
        next((METHODS[method] for method, pattern in _PATTERNS.items() if pattern.search(name.lower())), None)
        for name in names
    ]
    free = cycle([value for value in CYCLE if value not in methods] or CYCLE)
    return [method or next(free) for method in methods]


def matplotlib_settings() -> dict[str, Any]:
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
