"""How every benchmark here measures: equality first, then interleaved pairs, then a verdict against a gate.

A ratio is always peer ÷ ours, so more than 1 means that we are faster or smaller.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from outcome import FACTORS, SPREAD, Bar, Measure, Outcome, Unit
from torch import Tensor
from work import Work, count

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
SEED = 0
ROUNDS = 7
ONCE = False  # `run.py --once` sets it: one round, to try a benchmark
PACKAGES = ("embrew", "torch", "transformers", "peft")

Step = Callable[[], Any]


# ---- what a benchmark is -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A named comparison.

    Attributes:
        name: as given on the command line; also the name of its result files.
        title: what is compared, in a line.
        run: measures; raises `Unequal` before any ratio exists if both sides do not compute the same.
        variants: for benchmarks of memory, what a fresh process builds, by name; what is built is then run in it.
    """

    name: str
    title: str
    run: Callable[[Benchmark], Outcome]
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


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Samples of several sides that were taken in turn.

    Attributes:
        rounds: a sample of every side in each.
        work: what a call of each side computes.
    """

    rounds: list[dict[str, Sample]]
    work: Mapping[str, Work]

    def measure(self, what: str, ours: str, peer: str, bar: Bar, unit: Unit = "ms") -> Measure:
        """Return the median of the ratios of two sides, each taken within a round."""
        pairs = tuple(one[peer].wall / one[ours].wall for one in self.rounds)
        return Measure(
            what=what,
            unit=unit,
            ours=FACTORS[unit] * statistics.median(one[ours].wall for one in self.rounds),
            peer=FACTORS[unit] * statistics.median(one[peer].wall for one in self.rounds),
            ratio=statistics.median(pairs),
            bar=bar,
            low=min(pairs),
            high=max(pairs),
            cpu_ratio=statistics.median(one[peer].cpu / max(one[ours].cpu, 1e-9) for one in self.rounds),
            pairs=pairs,
            steady=max(pairs) / min(pairs) <= SPREAD,
            work=(self.work[ours], self.work[peer]),
        )


def take_turns(
    sides: Mapping[str, Step],
    compared: Iterable[tuple[str, str]],
    *,
    rounds: int | None = None,
    warm_ups: int = 1,
    repeat: Mapping[str, int] | None = None,
    tokens: Mapping[str, int] | None = None,
) -> Turns:
    """Time all sides in turn, and once more if the ratios of a compared pair spread too far.

    Args:
        sides: by name.
        compared: names of two sides (ours, peer).
        rounds: of all sides; `ROUNDS` by default.
        warm_ups: unmeasured calls of every side; what the first computes is counted.
        repeat: calls averaged into one sample, for what is too short to be timed alone.
        tokens: of a side's forward passes without padding.
    """
    names, repeat, tokens = [*compared], repeat or {}, tokens or {}
    work = {name: count(step, tokens.get(name)) for name, step in sides.items()}
    for attempt in (1, 2):
        for step in [*sides.values()] * (warm_ups if attempt == 2 else warm_ups - 1):
            step()
        gc.collect()
        taken = [
            {name: sample(step, repeat.get(name, 1)) for name, step in sides.items()}
            for _ in range(1 if ONCE else rounds or ROUNDS)
        ]
        turns = Turns(rounds=taken, work=work)
        if all(turns.measure("", ours, peer, Bar(gate=1, target=1)).steady for ours, peer in names):
            break
    return turns


def time_pairs(
    what: str,
    ours: Step,
    peer: Step,
    bar: Bar,
    *,
    unit: Unit = "ms",
    rounds: int | None = None,
    warm_ups: int = 1,
    repeat: tuple[int, int] = (1, 1),
    tokens: tuple[int, int] | None = None,
) -> Measure:
    """Time two sides in turn, ours first, and return the median of the ratios of neighbours.

    Args: as of `take_turns`, for ours and the peer.
    """
    turns = take_turns(
        {"ours": ours, "peer": peer},
        [("ours", "peer")],
        rounds=rounds,
        warm_ups=warm_ups,
        repeat=dict(zip(("ours", "peer"), repeat, strict=True)),
        tokens=dict(zip(("ours", "peer"), tokens, strict=True)) if tokens else None,
    )
    return turns.measure(what, "ours", "peer", bar, unit)
