"""Growth of peak memory on a CPU: every side in fresh processes."""

from __future__ import annotations

import ctypes
import gc
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import harness
from harness import HERE, Bar, Benchmark, Measure, Outcome, one_core, require_equal
from torch import Tensor


def peak_rss() -> float:
    """Most memory this process has held, in MB.

    On Linux the kernel's high-water mark of this program (`ru_maxrss` counts the same but starts from what the parent
    held when the process was forked, which would hide any growth below that).
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Let the peak of resident memory begin anew at what is resident now, where the system can (Linux)."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(AttributeError):  # glibc's
            ctypes.CDLL(None).malloc_trim(0)  # what was freed while building is not there to be used again unseen
        Path("/proc/self/clear_refs").write_text("5")


def grow(benchmark: Benchmark, variant: str, steps: int = 3) -> dict[str, float]:
    """Build a variant in this process, run it, and say by how much the peak grew: the work of a fresh process."""
    one_core()
    step = benchmark.variants[variant]()
    forget_peak()
    before = peak_rss()
    for _ in range(steps):
        values = step()
    return {"built": before, "grew": peak_rss() - before, **values}


def memory_of(benchmark: Benchmark, *, processes: int = 2) -> dict[str, dict[str, float]]:
    """`grow` of every variant in fresh processes, taken in turn; the mean growth of each, and the last other values.

    Raises:
        RuntimeError: a process failed.
    """
    runs: dict[str, list[dict[str, float]]] = {variant: [] for variant in benchmark.variants}
    for _ in range(1 if harness.ONCE else processes):
        for variant, found in runs.items():
            command = [sys.executable, str(HERE / "run.py"), "--variant", f"{benchmark.name}:{variant}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{benchmark.name}:{variant} failed in its own process\n{done.stderr[-3000:]}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
    return {
        variant: {**found[-1], "grew": statistics.mean(run["grew"] for run in found)} for variant, found in runs.items()
    }


def memory_growth(benchmark: Benchmark, *, bar: Bar, tolerances: Mapping[str, float]) -> Outcome:
    """Peak of resident memory over what the built models take, each side in a fresh process.

    `tolerances`: relative differences that are allowed between the two sides' other values, by name.
    """
    found = memory_of(benchmark)
    ours, peer = found["ours"], found["peer"]
    growth = Measure.of("growth of peak memory in 3 steps", "MB", ours["grew"], peer["grew"], bar)
    return Outcome(
        equality={name: require_equal(name, [(ours[name], peer[name])], most) for name, most in tolerances.items()},
        measures=[growth],
        notes={f"MB after building, {name}": side["built"] for name, side in (("ours", ours), ("peer", peer))},
    )


def loss_and_norm(step: Callable[[], Tensor], trained: Mapping[str, Tensor]) -> Callable[[], dict[str, float]]:
    """A step that returns what tells whether it computed the same: its loss, and the norm of its gradients."""

    def run() -> dict[str, float]:
        loss = step()
        norm = sum(float(p.grad.double().square().sum()) for p in trained.values() if p.grad is not None) ** 0.5
        return {"loss": float(loss), "gradient_norm": norm}

    return run
