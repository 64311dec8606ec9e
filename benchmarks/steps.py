"""Two commits of embrew side by side: training steps of every method, `encode`, and the evidence suite.

    python benchmarks/steps.py --before COMMIT [--model nano] [--rounds 7] [WORKLOAD ...]

Each side is a process under its own source (a git worktree of COMMIT, and this checkout) on one core. The processes
take turns, so that other work on the machine meets both. A turn of training is some optimiser steps of the trainer.
The ratio is before ÷ now, the median over neighbouring turns; beside it the rate of matrix products, and its share of a
512³ product's in float32 and in bfloat16 in the same minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import harness  # first: it sets the environment that torch reads at import
import report
from models import save_llama
from steps_worker import COUNT, TURN
from work import ceilings

WARM_UPS = 1
TRAINING: dict[str, tuple[str, str, list[str]]] = {
    "compression": ("llm2comp/nano-wiki", "compress", []),
    "unsupervised": ("llm2comp/nano-wiki", "unsupervised", []),
    "supervised": ("llm2comp/nano-wiki", "supervised", []),
    "ese": ("ese/nano", "espresso", []),
    "alignment": ("autoregembed/nano", "align", []),
    "bottleneck": ("lbr/medical-nano", "learn", []),
    "epic": ("epic/nano", "supervised", []),
}
STEPS = {"nano": 2, "llama-768": 1}  # optimiser steps of a turn
SMALLER = {  # on the larger model, so that a turn takes seconds
    "compression": ["stages.compress.training.per_device_train_batch_size=4"],
    "unsupervised": ["stages.unsupervised.batch.size=16"],
    "supervised": ["stages.supervised.batch.size=16"],
    "ese": ["stages.espresso.batch.size=16"],
    "alignment": ["stages.align.training.per_device_train_batch_size=8"],
    "bottleneck": ["stages.learn.training.per_device_train_batch_size=4"],
    "epic": ["stages.supervised.batch.size=8"],
}
OTHERS = ("encode-short", "encode-lognormal", "evidence")
WORKLOADS = (*TRAINING, *OTHERS)


class Side:
    """A worker process under one source."""

    def __init__(self, source: Path, work: dict[str, Any], core: int | None) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
        pin = ["taskset", "-c", str(core)] if core is not None else []
        self.process = subprocess.Popen(
            [*pin, sys.executable, str(harness.HERE / "steps_worker.py"), json.dumps(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def answer(self) -> dict[str, float]:
        """Return the next line; raise RuntimeError if the worker ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with {self.process.wait()}; its errors are above")
        found: dict[str, float] = json.loads(line)
        return found

    def turn(self, command: str = TURN) -> dict[str, float]:
        """Run one turn; return its seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        """End the worker."""
        self.process.kill()
        self.process.wait()


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Give a folder with the files of a commit."""
    top = harness.HERE.parent
    with tempfile.TemporaryDirectory(prefix="embrew-before-") as folder:
        place = Path(folder) / "tree"
        git = ["git", "-C", str(top), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(place), commit], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def work_of(name: str, model: str, base: str, folder: Path, trained: str | None) -> dict[str, Any]:
    """Return what a worker is told."""
    if name in TRAINING:
        recipe, stage, overrides = TRAINING[name]
        more = [] if model == "nano" else [f"encoder.model={base}", *SMALLER[name]]
        work = {"kind": "train", "recipe": recipe, "stage": stage, "overrides": [*overrides, *more]}
        return {**work, "folder": str(folder), "steps": STEPS[model]}
    if name == "evidence":
        return {"kind": "evaluate", "model": trained or base, "suite": "evidence"}
    return {"kind": "encode", "model": trained or base, "texts": name.removeprefix("encode-")}


def measure(name: str, sides: tuple[Side, Side], rounds: int) -> dict[str, Any]:
    """Return the paired ratios (before ÷ now), and the rates of this side's matrix products."""
    before, now = sides
    before.answer(), now.answer()  # both have started
    long = name == "evidence"
    for _ in range(0 if long else WARM_UPS):
        before.turn(), now.turn()
    taken = [(before.turn(), now.turn()) for _ in range(rounds)]
    found: dict[str, Any] = {}
    for clock in ("wall", "cpu"):
        ratios = [old[clock] / new[clock] for old, new in taken]
        found[clock] = {
            "ratio": statistics.median(ratios),
            "low": min(ratios),
            "high": max(ratios),
            "before": statistics.median(old[clock] for old, _ in taken),
            "now": statistics.median(new[clock] for _, new in taken),
            "pairs": ratios,
        }
    if not long:
        found["ceiling"] = ceilings()
        for label, side in (("before", before), ("now", now)):
            counted = side.turn(COUNT)["gflop"]
            found[f"gflop_{label}"] = counted
            found[f"gflops_{label}"] = counted / found["cpu"][label]
    return found


def lines_of(model: str, results: dict[str, Any]) -> list[str]:
    """Return a Markdown table."""
    lines = [
        f"| {model} | before ÷ now | lowest to highest | CPU seconds | GFLOP/s before | now | of float32 | of bf16 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        wall, row = found["wall"], [name]
        row += [f"{wall['ratio']:.2f}", f"{wall['low']:.2f} to {wall['high']:.2f}", f"{found['cpu']['ratio']:.2f}"]
        if "ceiling" in found:
            now = found["gflops_now"]
            rates = [found["ceiling"][dtype] for dtype in ("float32", "bfloat16")]
            shares = ["emulated" if rate < rates[0] / 4 else f"{now / rate:.0%}" for rate in rates]
            row += [f"{found['gflops_before']:.0f}", f"{now:.0f}", *shares]
        else:
            row += ["", "", "", ""]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def main() -> int:
    """Measure, and write one JSON and one Markdown file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--before", required=True, help="commit to compare with")
    parser.add_argument("--model", choices=list(STEPS), default="nano")
    parser.add_argument("--trained", nargs=2, metavar=("BEFORE", "NOW"), help="saved encoders for the last three")
    parser.add_argument("--rounds", type=int, default=harness.ROUNDS)
    parser.add_argument("--output", type=Path, default=harness.RESULTS)
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(WORKLOADS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(WORKLOADS)}")
    place = arguments.output / f"steps-{arguments.model}"
    arguments.output.mkdir(parents=True, exist_ok=True)
    harness.one_core()
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else None
    around = report.circumstances(" ".join(["python benchmarks/steps.py", *sys.argv[1:]]))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="embrew-steps-")))
        sources = stack.enter_context(checkout(arguments.before)), harness.HERE.parent
        base = arguments.model
        if base != "nano":
            base = str(folder / "model")
            save_llama(Path(base), width=768, inner=2048, layers=12, heads=12)
        for name in arguments.names or WORKLOADS:
            trained = arguments.trained or (None, None)
            sides = [
                Side(source, work_of(name, arguments.model, base, folder / f"{name}-{label}", model), core)
                for label, source, model in zip(("before", "now"), sources, trained, strict=True)
            ]
            try:
                found = measure(name, (sides[0], sides[1]), arguments.rounds)
            finally:
                for side in sides:
                    side.close()
            print("\n".join(lines_of(arguments.model, {name: found})[2:]), flush=True)
            keep(place, arguments.model, name, {"before_commit": arguments.before, **around, **found})
    return 0


def keep(place: Path, model: str, name: str, found: dict[str, Any]) -> None:
    """Add a workload to the result files; one of an earlier run is replaced."""
    path = place.with_suffix(".json")
    known = json.loads(path.read_text())["workloads"] if path.is_file() else {}
    known = {one: {**known, name: found}[one] for one in WORKLOADS if one in {**known, name: found}}
    path.write_text(json.dumps({"name": place.name, "workloads": known}, indent=2) + "\n")
    commits = {(one["before_commit"], one["commit"][:7], one["date"][:10]) for one in known.values()}
    origins = [f"commit {before} ÷ {now}, {date}" for before, now, date in sorted(commits)]
    words = [f"# {place.name}", "", "Training steps, encoding and evaluation of two commits in turn on one core.", ""]
    words += [*lines_of(model, known), "", *origins, "", f"`{found['command']}`"]
    place.with_suffix(".md").write_text("\n".join(words) + "\n")


if __name__ == "__main__":
    sys.exit(main())
