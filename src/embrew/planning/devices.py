"""Devices that a plan is made for: memory, and the arithmetic that matrix products reach at most."""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from embrew.machine import total_and_free

Gpu = Literal["h200", "h100", "a100-80", "a100-40", "l40s", "4090", "a10", "l4", "3060", "cpu"]
GIB = 1 << 30
GPU_OVERHEAD = 1 * GIB  # what CUDA itself and the libraries' workspaces take, and fragments between tensors
CPU_KERNELS = 600 << 20  # the code that oneDNN generates for products of bfloat16
MEMORY_STATUS = Path("/proc/self/statm")
TIMED_PRODUCTS, TIMED_SIZE = 3, 768  # matrix products that are timed on a CPU, and rows of their matrices


@dataclass(frozen=True)
class Device:
    """A device.

    Attributes:
        name: name on the command line.
        memory: bytes that PyTorch finds on it; of a CPU, a process's share of the machine's.
        bfloat16: peak floating-point operations per second in dense products of bfloat16; None: timed.
        float32: the same in float32 (TF32 on GPUs).
        kind: type of the device, as PyTorch names it.
    """

    name: str
    memory: int
    bfloat16: float | None = None
    float32: float | None = None
    kind: str = "cuda"

    def overhead(self, arithmetic: str, weights: int = 0) -> int:
        """Return the bytes that a process takes before there is a weight, or with `weights` bytes of them."""
        if self.kind != "cpu":
            return GPU_OVERHEAD
        pages = int(MEMORY_STATUS.read_text().split()[1]) if MEMORY_STATUS.is_file() else 0
        used = max(pages * os.sysconf("SC_PAGE_SIZE") - weights, 600 << 20)
        return used + (CPU_KERNELS if arithmetic == "bfloat16" else 0)

    def speed(self, arithmetic: str) -> float:
        """Return the largest number of operations per second in a dtype."""
        peak = self.float32 if arithmetic == "float32" else self.bfloat16
        return _timed(getattr(torch, arithmetic)) if peak is None else peak


# Memory as torch.cuda.mem_get_info gives it; dense Tensor Core figures of NVIDIA's data sheets (H100 and H200: SXM).
# The 3060's are twice and once its float32 rate, as NVIDIA gives them for other GeForce GPUs of its generation.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Device("h200", int(139.8 * GIB), 989e12, 494e12),
        Device("h100", int(79.2 * GIB), 989e12, 494e12),
        Device("a100-80", int(79.2 * GIB), 312e12, 156e12),
        Device("a100-40", int(39.4 * GIB), 312e12, 156e12),
        Device("l40s", int(44.4 * GIB), 362e12, 183e12),
        Device("4090", int(23.6 * GIB), 165e12, 82.6e12),
        Device("a10", int(22.0 * GIB), 125e12, 62.5e12),
        Device("l4", int(22.0 * GIB), 121e12, 60e12),
        Device("3060", int(11.7 * GIB), 25.5e12, 12.7e12),
    )
}


def device(name: str, processes: int = 1) -> Device:
    """Return a device by name; `cpu` is this machine, whose memory the processes share.

    Raises:
        ValueError: an unknown name.
    """
    if name == "cpu":
        return Device("cpu", total_and_free()[0] // processes, kind="cpu")
    if name not in GPUS:
        raise ValueError(f"gpu={name!r}; choose from {', '.join(GPUS)}, cpu")
    return GPUS[name]


def device_here(target: torch.device, processes: int = 1) -> Device:
    """Return the device of this machine that a process uses; of a GPU that is not in `GPUS`, the speed is NaN."""
    if target.type == "cpu":
        return device("cpu", processes)
    gpu = torch.cuda.get_device_properties(target)
    unknown = Device(gpu.name, gpu.total_memory, math.nan, math.nan)
    same = next((entry for name, entry in GPUS.items() if _is_named(name, gpu.name)), unknown)
    return replace(same, name=gpu.name, memory=gpu.total_memory)


def _is_named(name: str, full_name: str) -> bool:
    """Whether a name of `GPUS` is in the driver's name of a GPU; "a10" is neither in "A100" nor in "A10G"."""
    return re.search(rf"{name.partition('-')[0]}\b", full_name.lower()) is not None


@cache
def _timed(dtype: torch.dtype) -> float:
    """Return the operations per second that a product of two matrices reaches on this CPU."""
    a = torch.ones(TIMED_SIZE, TIMED_SIZE, dtype=dtype)
    seconds = []
    for _ in range(TIMED_PRODUCTS):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    return float(2 * TIMED_SIZE**3 / min(seconds))
