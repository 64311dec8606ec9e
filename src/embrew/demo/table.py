"""The demonstration's results as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from embrew.analysis.plots import draw_bars, drawing


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
    with drawing(path, 8, 0.7 * len(rows) + 1.4) as figure:
        axes = figure.subplots()
        drawn = {"nDCG@10": [row["ndcg_at_10"] for row in rows], "Recall@10": [row["recall_at_10"] for row in rows]}
        draw_bars(axes, [row["step"] for row in rows], drawn)
        axes.set_xlabel("score on the documentation of unseen packages")
