"""Whether encoding costs more the longer a process lives: `python benchmarks/repeated.py`.

One process calls `encode` 2,000 times, on texts that are new each time, in batches of different sizes and lengths, and
every fourth time with a context. CPU time and resident memory after every 200 calls. Results: `results/repeated.*`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

from harness import RESULTS, SEED
from report import circumstances, origin, table

from embrew.encoder import Encoder
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations

WORDS = Path(__file__).read_text(encoding="utf-8").split()
WINDOW = 200


def resident_mb() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    generator = random.Random(SEED)
    encoder = Encoder.from_pretrained("nano", pooling="mean", demonstrations=Demonstrations(compress="none"))
    pairs = (
        Demonstration("How deep is the lake?", "The lake is 40 metres deep."),
        Demonstration("Who runs the mill?", "A baker runs it."),
    )
    encoder.add_context("task", Context("Find the answer: ", pairs))

    def texts(count: int, words: int) -> list[str]:
        return [" ".join(generator.choices(WORDS, k=generator.randint(1, words))) for _ in range(count)]

    rows, began = [("0", 0.0, resident_mb())], time.process_time()
    for call in range(1, asked.calls + 1):
        given = texts(generator.choice((1, 2, 4, 8)), generator.choice((8, 30, 120)))
        encoder.encode(given, "task" if call % 4 == 0 else None, show_progress_bar=False)
        if call % WINDOW == 0:
            rows.append((f"{call:,}", time.process_time() - began, resident_mb()))
            began = time.process_time()
    around = circumstances(f"python benchmarks/repeated.py --calls {asked.calls}")
    lines = [
        "# repeated",
        "",
        f"{asked.calls:,} calls of `encode` in one process: nano, 1 to 8 texts of 1 to 120 words, one thread; every "
        "fourth call with a context of two demonstrations.",
        "",
        *table(
            ["calls", f"CPU s of the last {WINDOW}", "resident MB"],
            [[calls, f"{cpu:.1f}" if cpu else "", f"{memory:,.0f}"] for calls, cpu, memory in rows],
        ),
        "",
        *origin(around),
        f"- seed: {SEED}",
        "",
    ]
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "repeated.md").write_text("\n".join(lines), encoding="utf-8")
    record = {"name": "repeated", "windows": rows, **around}
    (asked.output / "repeated.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
