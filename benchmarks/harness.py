"""What benchmarks share: sides timed in turn on one core, and result files that say how they were made.

It is imported before torch, whose number of threads is read from the environment at import.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from embrew.storage.base_model import supports_natively

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
SEED = 0
SPREAD = 1.6  # a comparison whose ratios differ by more is inconclusive
SHORT = supports_natively(torch.bfloat16, torch.device("cpu"))  # by the processor's flags, as training chooses it
ARITHMETIC = "bfloat16" if SHORT else "float32"
DTYPE = torch.bfloat16 if SHORT else torch.float32
PACKAGES = ("embrew", "torch", "transformers", "peft")


# ---- time ----------------------------------------------------------------------------------------------------------


def one_core() -> None:
    """One thread, on one core where the system lets us choose."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # not allowed everywhere; one thread it is all the same
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class Seconds(NamedTuple):
    """Seconds of one side, one entry per round."""

    cpu: list[float]
    wall: list[float]


def turns(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Seconds]:
    """Return the seconds of a call of each side, one per round; sides take turns, after a first call of each."""
    seconds = {name: Seconds([], []) for name in sides}
    for number in range(rounds + 1):
        for name, call in sides.items():
            cpu, wall = time.process_time(), time.perf_counter()
            call()
            if number:
                seconds[name].cpu.append(time.process_time() - cpu)
                seconds[name].wall.append(time.perf_counter() - wall)
    return seconds


def interleaved(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of `turns`."""
    return {name: seconds.cpu for name, seconds in turns(sides, rounds).items()}


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Return the median of the ratios of two sides within a round, the smallest and the largest."""
    pairs = [one / other for one, other in zip(above, below, strict=True)]
    return {"ratio": statistics.median(pairs), "low": min(pairs), "high": max(pairs)}


class Unequal(RuntimeError):
    """Two sides that should compute the same do not, so that nothing was measured."""


def compared(
    sides: Mapping[str, Callable[[], Any]], pairs: Mapping[str, tuple[str, str]], rounds: int
) -> dict[str, dict[str, Any]]:
    """Return for each pair of sides, by its label, the ratio of the first to the second in CPU seconds.

    Where the largest ratio of a round is more than `SPREAD` times the smallest, all sides are measured once more.
    """
    for _ in range(2):
        seconds = turns(sides, rounds)
        found = {}
        for label, (above, below) in pairs.items():
            both = {name: seconds[name] for name in (above, below)}
            wall, cpu = (ratio(*(getattr(one, clock) for one in both.values())) for clock in ("wall", "cpu"))
            conclusive = cpu["high"] <= SPREAD * cpu["low"]
            taken = {name: one._asdict() for name, one in both.items()}
            found[label] = {**cpu, "conclusive": conclusive, "rounds": rounds, "wall": wall, "seconds": taken}
        if all(one["conclusive"] for one in found.values()):
            break
    return found


def alone(value: float) -> dict[str, Any]:
    """Return a value that is not a ratio of seconds as a result of `compared`."""
    return {"ratio": value, "low": value, "high": value, "conclusive": True, "rounds": 1}


def line(
    found: Mapping[str, Any], *, least: float | None = None, most: float | None = None, form: str = ".2f", **facts: Any
) -> dict[str, Any]:
    """Return a result of `compared` with its goal, whether that is met, and how a table shows it."""
    value, low, high = (format(found[key], form) for key in ("ratio", "low", "high"))
    several = f" ({low} to {high})" if found["rounds"] > 1 else ""
    met = found["ratio"] >= least if least is not None else most is None or found["ratio"] <= most
    goal = f"≥ {format(least, form)}" if least is not None else "" if most is None else f"≤ {format(most, form)}"
    state = "inconclusive" if not found["conclusive"] else "met" if met else "missed"
    return {"shown": value + several, "goal": goal, "state": state, **facts, **found}


# ---- results -------------------------------------------------------------------------------------------------------


def circumstances(command: str) -> dict[str, Any]:
    """Command, commit, hardware, versions and date."""
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


def write(name: str, page: Sequence[str], record: Mapping[str, Any], folder: Path = RESULTS) -> None:
    """Write a page and a record as `NAME.md` and `NAME.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
