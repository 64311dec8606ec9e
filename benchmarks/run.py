"""Run benchmarks: `python benchmarks/run.py [NAME ...] [--output DIR]`."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import harness  # first: it sets the environment that torch reads at import
import peaks
import report
import stale
import torch
import work
from ctkd_step import BENCHMARKS as CTKD_STEP
from depth import BENCHMARKS as DEPTH
from encode_peers import BENCHMARKS as ENCODE_PEERS
from espresso import BENCHMARKS as ESPRESSO
from espresso_step import BENCHMARKS as ESPRESSO_STEP
from opening import BENCHMARKS as OPENING
from openvino_encoding import BENCHMARKS as OPENVINO
from single_parts import BENCHMARKS as SINGLE_PARTS

SUITES = (
    CTKD_STEP,
    DEPTH,
    ENCODE_PEERS,
    ESPRESSO,
    ESPRESSO_STEP,
    OPENING,
    OPENVINO,
    SINGLE_PARTS,
)
BENCHMARKS = {benchmark.name: benchmark for suite in SUITES for benchmark in suite}


def main() -> int:
    """0 if every gate was reached, 1 if not, 2 if two sides did not compute the same."""
    parser = argparse.ArgumentParser(description="Compare embrew with peers; results go to benchmarks/results/.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all by default")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    parser.add_argument("--once", action="store_true", help="one round a measure, printed and not written: a trial")
    parser.add_argument("--output", type=Path, default=harness.RESULTS, help="folder of the result files")
    parser.add_argument("--stale", action="store_true", help="list results that are out of date, and stop")
    parser.add_argument("--variant", help=argparse.SUPPRESS)  # NAME:VARIANT, one side of a memory benchmark
    arguments = parser.parse_args()

    # peft's own use of a name that transformers is about to drop
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
    if arguments.list:
        for benchmark in BENCHMARKS.values():
            print(f"{benchmark.name:26}{benchmark.title}")
        return 0
    if arguments.stale:
        modules = {name: modules_of(benchmark) for name, benchmark in BENCHMARKS.items()}
        print(*stale.lines(stale.stale(arguments.output, modules)), sep="\n")
        return 0
    if arguments.variant:
        name, variant = arguments.variant.split(":")
        print(json.dumps(peaks.grow(BENCHMARKS[name], variant)))
        return 0
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
    harness.ONCE = arguments.once
    return max(run(BENCHMARKS[name], arguments.output) for name in arguments.names or BENCHMARKS)


def modules_of(benchmark: harness.Benchmark) -> set[Path]:
    """Return the files of the functions that a benchmark runs."""
    functions = [benchmark.run, *benchmark.variants.values()]
    return {Path(inspect.getfile(one.func if isinstance(one, partial) else one)) for one in functions}


def run(benchmark: harness.Benchmark, folder: Path) -> int:
    """Run one, write its files, say what it found."""
    print(f"{benchmark.name}: {benchmark.title}", flush=True)
    harness.one_core()
    torch.manual_seed(harness.SEED)
    started = time.perf_counter()
    before = work.ceilings()
    try:
        outcome = benchmark.run(benchmark)
    except harness.Unequal as error:
        print(f"  NOT EQUAL, nothing was measured: {error}\n", flush=True)
        return 2
    except harness.Missing as error:
        print(f"  skipped: {error}\n", flush=True)
        return 0
    reached = {dtype: max(before[dtype], rate) for dtype, rate in work.ceilings().items()}
    if harness.ONCE:
        print(report.page(benchmark, outcome, report.circumstances(""), reached))
        print(f"  {time.perf_counter() - started:.0f} s\n", flush=True)
        return 0
    page = report.write(benchmark, outcome, folder, reached)
    for measure in outcome.measures:
        print(f"  {measure.words}")
    shown = page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page
    print(f"  {time.perf_counter() - started:.0f} s; {shown}\n", flush=True)
    return 0 if outcome.verdict == "pass" else 1


if __name__ == "__main__":
    sys.exit(main())
