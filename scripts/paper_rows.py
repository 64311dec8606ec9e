"""Write benchmarks/rows.md, every row and figure of the five papers, from rows.yaml; with --check compare only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SOURCE, PAGE = BENCHMARKS / "rows.yaml", BENCHMARKS / "rows.md"
STATES = {"run": "run here", "checks": "checks here", "needs": "needs data or a GPU"}
HEAD = """# Every row and figure of the five papers

Written by `make tables` from `rows.yaml`. The commands have the papers' models; no row was run on these here.

- **run here**: on a small model (SmolLM2, MiniLM, the small world's teacher) and other data; what else differs is named
- **checks here**: the recipe is checked, and two steps of each stage, or untrained vectors, are computed on nano
- **needs data or a GPU**: not computed here; what is missing is named
"""


def page(papers: list[dict[str, Any]]) -> str:
    """Return the page: counts by paper, then a table for each part of each paper."""
    counts = [
        "| paper | rows and figures | " + " | ".join(STATES.values()) + " |",
        "|---|" + "---:|" * (1 + len(STATES)),
    ]
    total = [0] * (1 + len(STATES))
    for paper in papers:
        entries = [entry for part in paper["parts"] for entry in part["entries"]]
        each = [sum(len(entry["rows"]) for entry in entries if entry["state"] == state) for state in STATES]
        numbers = [sum(each), *each]
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        counts.append(f"| {paper['name']} | " + " | ".join(map(str, numbers)) + " |")
    counts.append("| all | " + " | ".join(map(str, total)) + " |")
    parts = [HEAD, "\n".join(counts)]
    for paper in papers:
        parts += [f"## {paper['name']}", f"*{paper['title']}.*"]
        for part in paper["parts"]:
            lines = ["| row | recipe or command | here |", "|---|---|---|"]
            lines += [_line(entry) for entry in part["entries"]]
            parts += [f"### {paper['name']}: {part['part']}", "\n".join(lines)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _line(entry: dict[str, Any]) -> str:
    how = f"`{entry['how']}`" if entry["how"].startswith("embrew ") else entry["how"]
    at = entry.get("at")
    if at:
        names = [at] if isinstance(at, str) else at
        how += f", row{'s' if len(names) > 1 else ''} " + ", ".join(f"`{name}`" for name in names)
    how += f" ({entry['note']})" if "note" in entry else ""
    state = STATES[entry["state"]] + (f", {entry['here']}" if "here" in entry else "")
    if "results" in entry:
        state += f": [{Path(entry['results']).name}]({entry['results']})"
    state = f"needs {entry['needs']}" if "needs" in entry else state
    return f"| {'; '.join(entry['rows'])} | {how.replace('|', chr(92) + '|')} | {state} |"


if __name__ == "__main__":
    text = page(yaml.safe_load(SOURCE.read_text(encoding="utf-8"))["papers"])
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} differs from {SOURCE}: run make tables")
