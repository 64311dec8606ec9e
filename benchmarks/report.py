"""Results as one Markdown and one JSON file a benchmark, with the circumstances they were measured in."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import work
from harness import HERE, PACKAGES, SEED, Benchmark, Outcome


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    """Return an installed version; embrew may run from its source."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "from source"


def circumstances(command: str) -> dict[str, Any]:
    """Command, commit, hardware, versions, seed and date."""
    changes = _git("status", "--porcelain", "--", ":(top)", ":(top,exclude)benchmarks/results")
    return {
        "command": command,
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "dirty": bool(changes) if changes is not None else None,
        "hardware": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads_used": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "seed": SEED,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def write(benchmark: Benchmark, outcome: Outcome, folder: Path, ceilings: Mapping[str, float]) -> Path:
    """One JSON and one Markdown file; returns the latter.

    `ceilings`: what matrix products reached in the same run, in GFLOP/s, by dtype.
    """
    folder.mkdir(parents=True, exist_ok=True)
    around = circumstances(f"python benchmarks/run.py {benchmark.name}")
    measures = [
        {
            "what": m.what,
            "unit": m.unit,
            "gate": m.bar.gate,
            "target": m.bar.target,
            "stretch": m.bar.stretch,
            "ratio": m.ratio,
            "low": m.low,
            "high": m.high,
            "cpu_ratio": m.cpu_ratio,
            "ours": m.ours,
            "peer": m.peer,
            "pairs": list(m.pairs),
            "work": m.made_of(ceilings),
            "verdict": m.verdict,
            "reached": m.bar.reached(m.ratio) if m.steady else None,
        }
        for m in outcome.measures
    ]
    record = {
        "name": benchmark.name,
        "title": benchmark.title,
        "verdict": outcome.verdict,
        "measures": measures,
        "equality": outcome.equality,
        "ceilings": dict(ceilings),
        "notes": outcome.notes,
        **around,
    }
    (folder / f"{benchmark.name}.json").write_text(json.dumps(record, indent=2) + "\n")
    written = folder / f"{benchmark.name}.md"
    written.write_text(page(benchmark, outcome, around, ceilings))
    return written


def page(benchmark: Benchmark, outcome: Outcome, around: Mapping[str, Any], ceilings: Mapping[str, float]) -> str:
    """The Markdown file."""
    lines = [f"# {benchmark.name}", "", f"{benchmark.title} Ratio = peer ÷ ours.", ""]
    rows = []
    for m in outcome.measures:
        span = "" if m.low is None else f"{m.low:.2f} to {m.high:.2f}"
        rows.append(
            [
                f"{m.what} ({m.unit})",
                number(m.ours),
                number(m.peer),
                f"{m.ratio:.2f}",
                span,
                "" if m.cpu_ratio is None else f"{m.cpu_ratio:.2f}",
                f"{m.bar.gate:g}",
                f"{m.bar.target:g}",
                "" if m.bar.stretch is None else f"{m.bar.stretch:g}",
                f"**{m.verdict}**; {m.bar.reached(m.ratio) if m.steady else 'pairs disagree'}",
            ]
        )
    header = ["", "ours", "peer", "ratio", "min to max", "CPU ratio", "gate", "target", "stretch", "verdict"]
    lines += table(header, rows)
    lines += ["", "Both sides compute the same; largest relative difference, checked before anything was measured:", ""]
    lines += [f"- {name}: {gap:.1e}" for name, gap in outcome.equality.items()]
    lines += _made_of(outcome, ceilings)
    if outcome.notes:
        lines += ["", "Beside it:", ""]
        tables: list[str] = []
        for name, value in outcome.notes.items():
            if isinstance(value, list):
                tables += ["", f"{name}:", "", *table(list(value[0]), [[number(v) for v in r.values()] for r in value])]
            else:
                lines.append(f"- {name}: {number(value)}")
        lines += tables
    hardware, versions = around["hardware"], around["versions"]
    dirty = " with uncommitted changes" if around["dirty"] else ""
    lines += [
        "",
        f"- command: `{around['command']}`",
        f"- commit: {around['commit']}{dirty}",
        f"- hardware: {hardware['processor']}, {hardware['cores']} cores, {hardware['threads_used']} thread",
        "- versions: " + ", ".join(f"{name} {number}" for name, number in versions.items()),
        f"- seed {around['seed']}, {around['date']}",
        "",
    ]
    return "\n".join(lines)


def _made_of(outcome: Outcome, ceilings: Mapping[str, float]) -> list[str]:
    """Lines that say what each ratio is made of, one per measure."""
    found = {m.what: m.made_of(ceilings) for m in outcome.measures}
    said = [
        f"- {what}: " + ". ".join(f"**{side}** {work.in_words(made)}" for side, made in sides.items())
        for what, sides in found.items()
        if sides
    ]
    if not said:
        return []
    reached = " and ".join(f"{rate:.0f} GFLOP/s in {dtype}" for dtype, rate in ceilings.items())
    return ["", f"What each is made of (a 512³ matrix product reached {reached} in the same run):", "", *said]


def number(value: Any) -> str:
    """A number as it stands in a table."""
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def origin(around: Mapping[str, Any]) -> list[str]:
    """Command, commit, hardware and date as lines of a list."""
    hardware = around["hardware"]
    return [
        f"- command: `{around['command']}`",
        f"- commit: {around['commit']}" + (" with changes" if around["dirty"] else ""),
        f"- hardware: {hardware['processor']}, {hardware['cores']} cores, GPU: {hardware['gpu'] or 'none'}",
        f"- date: {around['date']}",
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
