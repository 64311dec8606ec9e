"""A training step with spinning and with sleeping OpenMP threads: `python benchmarks/threads.py`.

Alone and beside busy processes. Each cell is a process of its own: nano, all weights trained, 8 texts of 96 tokens;
the cells of one row are repeated in turn. Results: `results/threads.*`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import RESULTS
from report import circumstances, origin, table

from embrew.threads import cores

STEP = """
import json, statistics, time
from embrew.demo import measured_step
began = time.process_time()
seconds = [measured_step(5) for _ in range(3)]
print(json.dumps([statistics.median(seconds), time.process_time() - began]))
"""
VARIANTS = {
    "1 thread": {"OMP_NUM_THREADS": "1"},
    "{n} threads, spinning": {"OMP_NUM_THREADS": "{n}"},
    "{n} threads, spinning briefly": {"OMP_NUM_THREADS": "{n}", "GOMP_SPINCOUNT": "1000"},
    "{n} threads, sleeping": {"OMP_NUM_THREADS": "{n}", "OMP_WAIT_POLICY": "PASSIVE"},
}


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Other processes that compute all the time."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def one(variables: dict[str, str]) -> tuple[float, float]:
    """Seconds of a step, and CPU seconds of the process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    given = {name: value.format(n=cores()) for name, value in variables.items()}
    done = subprocess.run([sys.executable, "-c", STEP], env={**kept, **given}, stdout=subprocess.PIPE, check=True)
    wall, cpu = json.loads(done.stdout)
    return wall, cpu


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    rows, figures = [], {}
    for others in (0, 1, 2 * cores()):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
        with busy(others):
            for _ in range(asked.rounds):
                for name, variables in VARIANTS.items():
                    found[name].append(one(variables))
        walls = {name: statistics.median(wall for wall, _ in pairs) for name, pairs in found.items()}
        figures[str(others)] = {name.format(n=cores()): pairs for name, pairs in found.items()}
        rows.append([str(others), *(f"{1000 * walls[name]:.0f}" for name in VARIANTS)])
    around = circumstances(f"python benchmarks/threads.py --rounds {asked.rounds}")
    lines = [
        "# threads",
        "",
        f"Milliseconds of a training step on {cores()} cores, medians of {asked.rounds} rounds.",
        "",
        *table(["busy processes", *(f"{name.format(n=cores())}" for name in VARIANTS)], rows),
        "",
        *origin(around),
        "",
    ]
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "threads.md").write_text("\n".join(lines), encoding="utf-8")
    record = {"name": "threads", "seconds of a step and CPU seconds": figures, **around}
    (asked.output / "threads.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
