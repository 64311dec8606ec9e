"""The drill's report in Markdown: gates, items with what each found, and what was not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drill.gates import Gate
from drill.record import Record, Result
from drill.schedule import Item

BRIEF = {  # figures of an item that are shown in its line: name, words, decimals
    "tokens_per_s": ("tokens/s", 0),
    "peak_gb": ("GB at peak", 2),
    "planned_gb": ("GB planned", 2),
    "idle_share": ("of the time idle", 3),
    "loss_first": ("loss at first", 4),
    "loss_last": ("at last", 4),
    "ratio": ("times faster", 2),
    "largest_gap": ("largest difference", 6),
    "tests": ("tests", 0),
    "passed": ("passed", 0),
    "tests_skipped": ("skipped", 0),
    "matmul_bf16_tflops": ("TFLOP/s ceiling", 0),
}


def page(items: Sequence[Item], record: Record, gates: Sequence[Gate]) -> str:
    """Return the report; items that were not run, or not yet, are named as such."""
    title = "GPU drill" + (", on a pretended device: no figure is a measurement" if record.pretended else "")
    settled = [item for item in items if status(record, item) in ("passed", "failed", "skipped")]
    lines = [f"# {title}", "", f"{len(settled)} of {len(items)} items were run. {machine(record.preflight)}", ""]
    rows = [gate.row(record.items, pretended=record.pretended) for gate in gates]
    lines += ["## Gates", "", *table(
        ["gate", "what", "required", "measured", "verdict"],
        [[r["gate"], r["what"], r["required"], r["shown"], verdict(r)] for r in rows],
    )]  # fmt: skip
    lines += ["", "## Items", "", *table(
        ["item", "what", "result", "seconds", "found"],
        [line(item, record) for item in items],
    ), ""]  # fmt: skip
    for item in items:
        lines += details(item, record.items.get(item.name, {}))
    commits = sorted({str(found.get("commit")) for found in record.items.values()})
    lines += [f"Commits: {', '.join(commits)}; hash of the present code: {record.code}. `make gpu-drill`", ""]
    return "\n".join(lines)


def machine(found: Result) -> str:
    """Return the machine and its software in a sentence."""
    packages = ", ".join(
        f"{name} {found.get('installed', {}).get(name, 'none')}" for name in ("torch", "transformers", "triton")
    )
    gpu = f"{found['gpu']}, {found['total_gb']:.0f} GB" if found.get("available") else "no GPU"
    return f"{gpu}; driver {found.get('driver') or 'none'}, Python {found.get('python')}, {packages}."


def status(record: Record, item: Item) -> str:
    """Return an item's status for a reader."""
    return str(record.items.get(item.name, {}).get("status", "not run"))


def verdict(row: Mapping[str, Any]) -> str:
    """Return a gate's verdict, with the reason where there is one."""
    return f"**{row['verdict']}**" + (f" ({row['why']})" if row["why"] else "")


def line(item: Item, record: Record) -> list[str]:
    """Return the cells of an item."""
    found = record.items.get(item.name, {})
    said = status(record, item)
    if found and found.get("code") != record.code:
        said += f" (code {found['code']})"
    seconds = f"{found['seconds']:.0f}" if found.get("seconds") else ""
    return [item.name, item.title, said, seconds, brief(found)]


def brief(found: Result) -> str:
    """Return the most telling figures of an item, what does not hold, and why it failed or was skipped."""
    figures = found.get("figures") or {}
    parts = [
        f"{figures[name]:,.{decimals}f} {words}"
        for name, (words, decimals) in BRIEF.items()
        if isinstance(figures.get(name), int | float)
    ]
    parts += [f"not so: {name}" for name, held in found.get("checks", {}).items() if not held]
    parts += [str(found["reason"])] if found.get("reason") else []
    return "; ".join(parts)


def details(item: Item, found: Result) -> list[str]:
    """Return an item's tables, with all its rows."""
    several = {
        name: value
        for name, value in (found.get("figures") or {}).items()
        if isinstance(value, list) and value and isinstance(value[0], dict) and name != "measures"
    }
    lines: list[str] = []
    for name, rows in several.items():
        heads = list(dict.fromkeys(head for row in rows for head in row))
        cells = [[number(row.get(head)) for head in heads] for row in rows]
        lines += [f"### {item.name}: {name}", "", *table(heads, cells), ""]
    for one in (found.get("figures") or {}).get("measures", []):
        lines += [f"- {item.name}, {one['what']}: {one['ratio']:.2f} (gate {one['gate']:g}): {one['verdict']}"]
    return [*lines, ""] if lines else []


def number(value: Any) -> str:
    """Return a cell."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; a cell holds neither `|` nor line breaks."""
    cells = [[" ".join(cell.replace("|", "/").split()) for cell in row] for row in rows]
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(row) + " |" for row in cells),
    ]
