"""How every benchmark here measures: equality first, then interleaved pairs, then a verdict against a gate.

A ratio is always peer ÷ ours, so more than 1 means that we are faster or smaller.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
SEED = 0
ROUNDS = 7
SPREAD = 1.6  # largest ÷ smallest paired ratio above which a round of pairs proves nothing
PACKAGES = ("embrew", "torch", "transformers", "peft")

Verdict = Literal["pass", "miss", "inconclusive"]
Step = Callable[[], Any]


# ---- what a benchmark is, and what it finds ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The ratio that must be reached, the one aimed at, and the one hoped for."""

    gate: float
    target: float
    stretch: float | None = None

    def reached(self, ratio: float) -> str:
        """The highest of the three that a ratio reaches, in words."""
        if self.stretch is not None and ratio >= self.stretch:
            return "stretch goal reached"
        if ratio >= self.target:
            return "target reached"
        return "gate reached, target missed" if ratio >= self.gate else "gate missed"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One ratio against its bar.

    Attributes:
        what: the quantity.
        unit: of `ours` and `peer`.
        ours, peer: median, or peak.
        ratio: peer ÷ ours; for timings the median of the paired ratios.
        bar: gate, target, stretch.
        low, high: smallest and largest paired ratio.
        cpu_ratio: the same median over CPU seconds.
        pairs: the paired ratios, in order.
        steady: whether the pairs agree well enough for a verdict.
    """

    what: str
    unit: str
    ours: float
    peer: float
    ratio: float
    bar: Bar
    low: float | None = None
    high: float | None = None
    cpu_ratio: float | None = None
    pairs: tuple[float, ...] = ()
    steady: bool = True

    @classmethod
    def of(cls, what: str, unit: str, ours: float, peer: float, bar: Bar) -> Measure:
        """Two amounts, whose ratio is peer ÷ ours."""
        return cls(what=what, unit=unit, ours=ours, peer=peer, ratio=peer / ours, bar=bar)

    @property
    def verdict(self) -> Verdict:
        """Pass or miss of the gate; neither where the pairs disagree."""
        if not self.steady:
            return "inconclusive"
        return "pass" if self.ratio >= self.bar.gate else "miss"

    @property
    def words(self) -> str:
        """Ratio and verdict in one line."""
        span = "" if self.low is None else f" ({self.low:.2f} to {self.high:.2f})"
        stretch = "" if self.bar.stretch is None else f", stretch {self.bar.stretch:g}"
        said = self.bar.reached(self.ratio) if self.steady else f"pairs spread by more than {SPREAD}"
        bars = f"gate {self.bar.gate:g}, target {self.bar.target:g}{stretch}"
        return f"{self.what}: {self.ratio:.2f}{span}; {bars}: {self.verdict}, {said}"


@dataclass(kw_only=True)
class Outcome:
    """What a benchmark found: how equal both sides are, the ratios, and whatever else explains them."""

    equality: dict[str, float]
    measures: list[Measure]
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The worst of its measures."""
        worst: tuple[Verdict, ...] = ("miss", "inconclusive", "pass")
        return min((measure.verdict for measure in self.measures), key=worst.index)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A named comparison.

    Attributes:
        name: as given on the command line; also the name of its result files.
        title: what is compared, in a line.
        run: measures; raises `Unequal` before any ratio exists if both sides do not compute the same.
        gpu: needs a CUDA device.
        variants: for benchmarks of memory, what a fresh process builds, by name; what is built is then run in it.
    """

    name: str
    title: str
    run: Callable[[Benchmark], Outcome]
    gpu: bool = False
    variants: Mapping[str, Callable[[], Callable[[], dict[str, float]]]] = field(default_factory=dict)


class Unequal(Exception):
    """Both sides do not compute the same, so that no ratio between them means anything."""


class Missing(Exception):
    """What a benchmark is measured on is not on this machine."""


# ---- equality ------------------------------------------------------------------------------------------------------


def difference(ours: Tensor | float, peer: Tensor | float) -> float:
    """Largest absolute difference ÷ largest absolute value of the peer's."""
    a, b = (torch.as_tensor(x).detach().double().cpu() for x in (ours, peer))
    if a.shape != b.shape:
        raise Unequal(f"shapes {tuple(a.shape)} and {tuple(b.shape)}")
    gap = float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
    return gap if gap == gap else float("inf")


def require_equal(what: str, pairs: Iterable[tuple[Tensor | float, Tensor | float]], tolerance: float) -> float:
    """The largest relative difference of some pairs (ours, peer).

    Raises:
        Unequal: it is above the tolerance, or there is nothing to compare.
    """
    gaps = [difference(ours, peer) for ours, peer in pairs]
    if not gaps:
        raise Unequal(f"{what}: nothing to compare")
    if max(gaps) > tolerance:
        raise Unequal(f"{what} differ by {max(gaps):.2e} (relative), {tolerance:.0e} is allowed")
    return max(gaps)


# ---- time on a CPU -------------------------------------------------------------------------------------------------


def one_core() -> None:
    """One thread, on one core where the system lets us choose."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # not allowed everywhere; one thread it is all the same
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@dataclass(frozen=True)
class Sample:
    """Seconds of one call."""

    wall: float
    cpu: float


def sample(step: Step, repeat: int = 1) -> Sample:
    """Time a step, as the mean of some calls in a row."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(repeat):
        step()
    return Sample((time.perf_counter() - wall) / repeat, (time.process_time() - cpu) / repeat)


def time_pairs(
    what: str,
    ours: Step,
    peer: Step,
    bar: Bar,
    *,
    unit: Literal["s", "ms", "us"] = "ms",
    rounds: int = ROUNDS,
    warm_ups: int = 1,
    repeat: tuple[int, int] = (1, 1),
) -> Measure:
    """Time both sides in turn, ours first, and take the median of the ratios of neighbours.

    If the ratios spread too far, all rounds are run once more; if they still do, there is no verdict.

    Args:
        what: the quantity.
        ours, peer: the two sides.
        bar: gate and target.
        unit: to report in.
        rounds: pairs.
        warm_ups: unmeasured calls of either side.
        repeat: calls (ours, peer) averaged into one sample, for what is too short to be timed alone.
    """
    factor = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
    for attempt in (1, 2):
        for _ in range(warm_ups):
            ours(), peer()
        gc.collect()
        taken = [(sample(ours, repeat[0]), sample(peer, repeat[1])) for _ in range(rounds)]
        pairs = tuple(theirs.wall / own.wall for own, theirs in taken)
        steady = max(pairs) / min(pairs) <= SPREAD
        if steady or attempt == 2:
            break
    return Measure(
        what=what,
        unit=unit,
        ours=factor * statistics.median(own.wall for own, _ in taken),
        peer=factor * statistics.median(theirs.wall for _, theirs in taken),
        ratio=statistics.median(pairs),
        bar=bar,
        low=min(pairs),
        high=max(pairs),
        cpu_ratio=statistics.median(theirs.cpu / max(own.cpu, 1e-9) for own, theirs in taken),
        pairs=pairs,
        steady=steady,
    )


def gemm_gflops(size: int = 512, calls: int = 40) -> float:
    """Best float32 rate of a square matrix product on this core, now: what a step's rate is held against."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    sample(lambda: a @ b, 5)
    return 2e-9 * size**3 / min(sample(lambda: a @ b).wall for _ in range(calls))


def gflop(step: Step) -> float:
    """1e9 floating-point operations of a step's matrix products (on a CPU, torch counts no attention)."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops() / 1e9


# ---- memory on a CPU -----------------------------------------------------------------------------------------------


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
    for _ in range(processes):
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


# ---- on a GPU ------------------------------------------------------------------------------------------------------


def cuda_seconds(step: Step) -> float:
    """One call, between two CUDA events."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


def cuda_ceilings() -> dict[str, float]:
    """What the card does at best, now: an 8192³ bf16 matrix product and a copy within the device, on random data."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    cuda_seconds(lambda: a @ b)
    product = statistics.median(cuda_seconds(lambda: a @ b) for _ in range(20))
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    cuda_seconds(lambda: target.copy_(source))
    copied = statistics.median(cuda_seconds(lambda: target.copy_(source)) for _ in range(20))
    return {
        "matmul_bf16_tflops": 2e-12 * 8192**3 / product,
        "copy_tb_per_s": 2e-12 * source.numel() * source.element_size() / copied,
    }


def cuda_peak(step: Step, resident: float = 0.0) -> float:
    """Peak memory while a step runs, in GB, without what else lies on the card (`resident`, in GB)."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30 - resident


def fits(step: Step) -> bool:
    """Run a step; whether there was room for it."""
    try:
        step()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        fitted = False
    else:
        fitted = True
    gc.collect()
    torch.cuda.empty_cache()
    return fitted
