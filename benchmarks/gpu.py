"""Time, peak memory and ceilings on a GPU."""

from __future__ import annotations

import gc
import statistics

import torch
from harness import Step

DEVICE = "cuda"
SIDE, COPIED = 8192, 2**28  # of the matrices; numbers that are copied


def seconds(step: Step) -> float:
    """One call, between two CUDA events."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


def ceilings() -> dict[str, float]:
    """What the card does at best, now: a bf16 matrix product (8192³) and a copy within the device, on random data."""
    a, b = (torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    seconds(lambda: a @ b)
    product = statistics.median(seconds(lambda: a @ b) for _ in range(20))
    source = torch.randn(COPIED, device=DEVICE)
    target = torch.empty_like(source)
    seconds(lambda: target.copy_(source))
    copied = statistics.median(seconds(lambda: target.copy_(source)) for _ in range(20))
    return {
        "matmul_bf16_tflops": 2e-12 * SIDE**3 / product,
        "copy_tb_per_s": 2e-12 * source.numel() * source.element_size() / copied,
    }


def peak(step: Step, resident: float = 0.0) -> float:
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
