"""What the drill measures beside time and memory: how long the GPU is idle, and pairs of two sides."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

import gpu
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], Any]


def idle_of(spans: Iterable[tuple[float, float]]) -> float:
    """Return the share of the time between the first begin and the last end in which no span lies."""
    busy = reached = 0.0
    ordered = sorted(spans)
    if not ordered:
        return 1.0
    first = reached = ordered[0][0]
    for begin, end in ordered:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return 1.0 - busy / (reached - first) if reached > first else 1.0


class Profile:
    """Records the kernels and copies of a GPU between `start` and `stop`; on the pretended device, operations."""

    def __init__(self) -> None:
        real = gpu.DEVICE == "cuda"
        self.device = DeviceType.CUDA if real else DeviceType.CPU
        self.activities = [ProfilerActivity.CUDA if real else ProfilerActivity.CPU]
        self.running: profile | None = None

    def start(self) -> None:
        """Begin; what is still computed is waited for first. The first profile of a process takes longer to begin."""
        with profile(activities=self.activities):
            torch.ones(1, device=gpu.DEVICE).add_(1)
        torch.cuda.synchronize()
        self.running = profile(activities=self.activities)
        self.running.start()

    def stop(self) -> float:
        """Return the share of the time in which the GPU was idle."""
        assert self.running is not None
        torch.cuda.synchronize()
        self.running.stop()
        events = [event for event in self.running.events() or () if event.device_type == self.device]
        spans = [event for event in events if not getattr(event, "is_user_annotation", False)]
        self.running = None
        return idle_of((event.time_range.start, event.time_range.end) for event in spans)


def idle_share(step: Step) -> float:
    """Return the share of a step's time in which the GPU is idle."""
    profiled = Profile()
    profiled.start()
    step()
    return profiled.stop()


def pairs(ours: Step, peer: Step, rounds: int) -> dict[str, float]:
    """Time two sides in turn, after a call of each; return the median of peer ÷ ours, and milliseconds of both."""
    ours(), peer()
    taken = [(gpu.seconds(ours), gpu.seconds(peer)) for _ in range(rounds)]
    ratios = [theirs / own for own, theirs in taken]
    return {
        "ratio": statistics.median(ratios),
        "smallest_ratio": min(ratios),
        "largest_ratio": max(ratios),
        "ours_ms": 1e3 * statistics.median(own for own, _ in taken),
        "peer_ms": 1e3 * statistics.median(theirs for _, theirs in taken),
    }
