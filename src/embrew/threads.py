"""Threads of PyTorch on the CPU: how many, and what they do while they wait. Set before torch is imported."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
CACHED_PRODUCTS = "4096"  # sizes of matrix products in bfloat16 whose generated code is kept; oneDNN keeps 1,024


def cores() -> int:
    """Return how many cores this process may use: by affinity, and by the container's limit."""
    return min(_affinity(), _limit() or _affinity())


def set_threads() -> None:
    """Choose how threads of OpenMP wait, and start no more of them than a container has cores.

    They wait by spinning. On cores that other processes use too, they take the time of the threads that they wait for:
    there they sleep at once, elsewhere after a short time. Variables that are set already stay. Code for more sizes of
    bfloat16 products is kept than by default.
    """
    if _is_busy():
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    elif "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if cores() < _affinity():  # torch does not know of a container's limit
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", CACHED_PRODUCTS)


def cgroup(name: str) -> str:
    """Return the content of a file of the container's control group; empty: there is none."""
    try:
        return (CGROUP / name).read_text()
    except OSError:
        return ""


def _is_busy() -> bool:
    """Return whether other processes compute now: the load of the last minute exceeds half a core."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _limit() -> int | None:
    """Return the container's limit in whole cores, rounded up; None: there is none."""
    quota = cgroup("cpu.max").split()
    return max(1, -(-int(quota[0]) // int(quota[1]))) if len(quota) == 2 and quota[0].isdigit() else None
