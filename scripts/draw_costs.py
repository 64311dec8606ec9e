"""Draw score against minutes of training from the table `real-main` of `docs/tables.yaml`; `make tables` runs it.

It writes `benchmarks/results/real-cost.svg`. Ready encoders, whose training was not done here, are horizontal lines.
"""

from __future__ import annotations

import re
from pathlib import Path

from result_tables import DEFINITIONS, definitions

from embrew.analysis.plots import drawing
from embrew.plot_style import METHODS

PICTURE = Path(__file__).parents[1] / "benchmarks" / "results" / "real-cost.svg"
SCORE, MINUTES = "all 13 tasks", "core minutes"
NUMBER = re.compile(r"\d+(?:\.\d+)?")
LABELS = {  # of the table's rows: label in the picture, offset in points, colour
    "mean of the tokens": ("mean of the tokens", (8, -3), METHODS["untrained"]),
    "Echo": ("Echo", (8, -3), METHODS["prompted"]),
    "PromptEOL within the chat template": ("PromptEOL, chat template", (8, -3), METHODS["prompted"]),
    "contrastive learning": ("contrastive learning", (-62, 10), METHODS["infonce"]),
    "a teacher's embeddings (MiniLM)": ("teacher: MiniLM", (6, -14), METHODS["stock"]),
    "a teacher's embeddings (mpnet)": ("teacher: mpnet", (8, -8), METHODS["stock"]),
    "LLM2Comp's distillation": ("LLM2Comp's distillation", (8, -3), METHODS["llm2comp"]),
    "a teacher's embeddings (MiniLM), then contrastive learning": ("teacher, then contrast", (8, 3), METHODS["stock"]),
    "LLM2Comp's distillation, then contrastive learning": ("… then contrast", (-20, 9), METHODS["llm2comp"]),
    "AutoRegEmbed's compression": ("AutoRegEmbed's compression", (8, -8), METHODS["autoregembed"]),
    "AutoRegEmbed's compression, then its alignment": ("… then alignment", (8, -10), METHODS["autoregembed"]),
}


def main() -> None:
    """Draw every row of the table that `LABELS` names, and the ready encoders."""
    rows = definitions(DEFINITIONS.read_text(encoding="utf-8"))["real-main"].cells()
    with drawing(PICTURE, 7.2, 4.6) as figure:
        axes = figure.subplots()
        for row, (label, offset, colour) in LABELS.items():
            score, *spread = map(float, NUMBER.findall(rows[row][SCORE]))
            minutes = [float(number) for number in NUMBER.findall(rows[row][MINUTES])]
            middle = sum(minutes) / len(minutes)
            ends = {"xerr": (minutes[-1] - minutes[0]) / 2, "yerr": spread[0] if spread else None}
            axes.errorbar(middle, score, fmt="o", color=colour, markersize=6, elinewidth=1.2, **ends)
            axes.annotate(label, (middle, score), offset, textcoords="offset points", fontsize=9)
        for row, side, gap in (("all-MiniLM-L6-v2", "top", -0.5), ("all-mpnet-base-v2", "bottom", 0.2)):
            score = float(rows[row][SCORE])
            axes.axhline(score, color="0.6", linestyle="--", linewidth=1)
            axes.text(158, score + gap, f"{row}, ready", ha="right", va=side, fontsize=9, color="0.35")
        axes.set(xlabel="minutes of one core", ylabel=f"{SCORE}, × 100", xlim=(-4, 160), ylim=(36, 81))
        axes.grid(axis="y")


if __name__ == "__main__":
    main()
