"""Items that run what exists: tests that are marked `gpu`, and the benchmarks of `make bench-gpu`."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gpu

from drill.child import Skipped
from drill.record import TOP, Result

PYTEST = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-m", "gpu", "--strict-markers"]


def gpu_tests(path: str) -> Result:
    """Run the gpu-marked tests of a file. All skipped is a failure: they were to run here.

    On the pretended device they are collected only.
    """
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        more = [] if gpu.DEVICE == "cuda" else ["--collect-only"]
        code = int(pytest.main([*PYTEST, *more, f"--junitxml={report}", "--rootdir", str(TOP), str(TOP / path)]))
        figures: dict[str, Any] = {"exit": code, **({} if more else counts(report))}
    checks = {"pytest ended with 0": code == 0}
    if not more:
        checks["a test ran"] = figures["passed"] > 0
    return {"figures": figures, "checks": checks}


def counts(report: Path) -> dict[str, Any]:
    """Return how many tests there were, passed, failed and were skipped, and the first that failed."""
    tests = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [test for test in tests if test.find("failure") is not None or test.find("error") is not None]
    skipped = [test for test in tests if test.find("skipped") is not None]
    named = [{"failed": test.get("name", "")} for test in failed[:20]]
    found: dict[str, Any] = {"tests": len(tests), "passed": len(tests) - len(failed) - len(skipped)}
    return {**found, "tests_failed": len(failed), "tests_skipped": len(skipped), **({"failed": named} if named else {})}


def benchmark(name: str) -> Result:
    """Run a benchmark of `run.py --gpu`; write its files, and return its measures. A missed gate is no failure here."""
    import harness
    import report as pages
    import run
    import torch

    from drill import pretend

    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
    chosen = run.BENCHMARKS[name]
    if gpu.DEVICE != "cuda":
        for module in pretend.BENCHMARKS:
            pretend.shrink(sys.modules[module])
        harness.ROUNDS = 2
    torch.manual_seed(harness.SEED)
    try:
        outcome = chosen.run(chosen)
    except harness.Missing as error:
        raise Skipped(str(error)) from None
    with tempfile.TemporaryDirectory() as scratch:
        pages.write(chosen, outcome, harness.RESULTS if gpu.DEVICE == "cuda" else Path(scratch), {})
    measures = [
        {"what": one.what, "ratio": one.ratio, "gate": one.bar.gate, "verdict": one.verdict} for one in outcome.measures
    ]
    return {"figures": {"measures": measures, "largest_gap": max(outcome.equality.values(), default=None)}}
