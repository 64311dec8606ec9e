"""The demonstration's results as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table


def markdown(rows: list[dict[str, Any]], data: str) -> str:
    """Return the table as Markdown, below the data it was measured on."""
    lines = [f"{data}.", "", "| | nDCG@10 | Recall@10 | training |", "|---|---|---|---|"]
    for row in rows:
        seconds = "–" if row["seconds"] is None else f"{row['seconds']:.0f} s"
        lines.append(f"| {row['step']} | {row['ndcg_at_10']:.3f} | {row['recall_at_10']:.3f} | {seconds} |")
    return "\n".join(lines) + "\n"


def table(rows: list[dict[str, Any]], data: str) -> Table:
    """Return the table for a terminal."""
    shown = Table(title=f"Retrieval. {data}")
    for name in ("", "nDCG@10", "Recall@10", "training"):
        shown.add_column(name, justify="left" if not name else "right")
    for row in rows:
        seconds = "–" if row["seconds"] is None else f"{row['seconds']:.0f} s"
        shown.add_row(row["step"], f"{row['ndcg_at_10']:.3f}", f"{row['recall_at_10']:.3f}", seconds)
    return shown


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw both scores of every step as horizontal bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [row["step"] for row in rows]
    places = range(len(rows))
    figure, axes = pyplot.subplots(figsize=(8, 0.7 * len(rows) + 1.2), layout="constrained")
    for shift, (key, label, colour) in zip(
        (-0.2, 0.2), (("ndcg_at_10", "nDCG@10", "#2f6f8f"), ("recall_at_10", "Recall@10", "#d98c3f")), strict=True
    ):
        bars = axes.barh(
            [p + shift for p in places], [row[key] for row in rows], height=0.38, label=label, color=colour
        )
        axes.bar_label(bars, fmt="%.3f", padding=3, fontsize=9)
    axes.set_yticks(list(places), steps)
    axes.invert_yaxis()
    axes.set_xlim(0, min(1.0, max(row["recall_at_10"] for row in rows) * 1.15 + 0.02))
    axes.set_xlabel("score on the documentation of unseen packages")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
