"""A million pairs of texts from JSON lines, beside `json.loads`: `python benchmarks/reading.py WORK`.

Random words: a query of 8 and a positive of 25. `read` yields the checked rows of the file; `load` makes the data set
that training reads, and keeps it in the user's cache (here: in WORK), from where it is mapped the next time. That time,
and peak memory, are those of a fresh process: of its own pages (anonymous memory), less what it has before. WORK needs
1 GB, and is left empty.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness

from embrew.data.datasets import load
from embrew.data.reading import read

COMMAND = "python benchmarks/reading.py WORK"
PAIRS, ROUNDS, GOAL = 1_000_000, 3, 3.0
ALONE = """
import sys, threading, time
import datasets, pyarrow
from embrew.data.datasets import load

def own():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0])

def watch():
    while True:
        peak[0] = max(peak[0], own())
        time.sleep(0.05)

before = own()
peak = [before]
threading.Thread(target=watch, daemon=True).start()
began = time.process_time()
rows = load(sys.argv[1], kind="pairs", shuffle_seed=1)
assert len({row["query"] for row in rows.select(range(1000))}) > 900
print((peak[0] - before) * 1024, time.process_time() - began)
"""


def write_pairs(file: Path) -> None:
    """Write the pairs."""
    draw = random.Random(harness.SEED)
    words = [f"word{number}" for number in range(5000)]
    with file.open("w") as lines:
        for _ in range(PAIRS):
            pair = {"query": " ".join(draw.choices(words, k=8)), "positive": " ".join(draw.choices(words, k=25))}
            lines.write(json.dumps(pair) + "\n")


def parse(file: Path) -> None:
    """Parse every line, and no more."""
    with file.open() as lines:
        for text in lines:
            json.loads(text)


def first(file: Path, cache: Path) -> None:
    """Make the data set anew."""
    shutil.rmtree(cache, ignore_errors=True)
    assert len(load(file, kind="pairs")) == PAIRS


def alone(file: Path) -> tuple[float, float]:
    """Return the peak memory of a process that loads the pairs, in MB, and its CPU seconds."""
    output = subprocess.run([sys.executable, "-c", ALONE, str(file)], check=True, capture_output=True, text=True).stdout
    memory, seconds = output.split()
    return int(memory) / 1e6, float(seconds)


def main() -> None:
    """Measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    work = parser.parse_args().work
    harness.one_core()
    work.mkdir(parents=True, exist_ok=True)
    file, cache = work / "pairs.jsonl", work / "cache"
    os.environ["EMBREW_CACHE"] = str(cache)
    write_pairs(file)
    found = harness.interleaved(
        {
            "json.loads": lambda: parse(file),
            "read": lambda: sum(1 for _ in read(file)),
            "load, the first time": lambda: first(file, cache),
        },
        ROUNDS,
    )
    again = [alone(file) for _ in range(ROUNDS)]
    found["load, again"] = [seconds for _, seconds in again]
    shutil.rmtree(cache)
    memory = {"load, the first time": alone(file)[0], "load, again": max(megabytes for megabytes, _ in again)}
    shutil.rmtree(cache)
    file.unlink()
    record: dict[str, Any] = {**harness.circumstances(COMMAND), "found": found, "peak_mb": memory}
    rows = []
    for name, taken in found.items():
        times = harness.ratio(taken, found["json.loads"])
        goal = f"≤ {GOAL:g}: {'met' if times['ratio'] <= GOAL else 'missed'}" if name.startswith("load, the") else ""
        shown = f"{times['ratio']:.2f} ({times['low']:.2f} to {times['high']:.2f})"
        cells = [name, f"{statistics.median(taken):.2f}", shown, f"{memory[name]:.0f}" if name in memory else "", goal]
        rows.append(cells)
    page = [
        "# reading",
        "",
        f"{PAIRS:,} pairs, CPU seconds on one core, median of {ROUNDS} rounds in turn; MB of memory of its own.",
        "",
        *harness.table(["what", "seconds", "of json.loads", "MB", "goal"], rows),
        "",
        *harness.origin(record),
    ]
    harness.write("reading", page, record)


if __name__ == "__main__":
    main()
