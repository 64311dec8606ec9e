"""The machine, or its container: cores, threads of PyTorch (set before torch is imported), and free memory."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMORY_INFO = Path("/proc/meminfo")
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


def release_memory() -> None:
    """Give memory that nothing refers to back to the system; glibc alone keeps it, for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _is_busy() -> bool:
    """Return whether other processes compute now: the load of the last minute exceeds half a core."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _limit() -> int | None:
    """Return the container's limit in whole cores, rounded up; None: there is none."""
    quota = cgroup("cpu.max").split()
    return max(1, -(-int(quota[0]) // int(quota[1]))) if len(quota) == 2 and quota[0].isdigit() else None


def total_and_free() -> tuple[int, int | None]:
    """Return bytes of memory in all, and free bytes: caches that are given up on demand are free; None: unknown."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines = dict(line.split(":", 1) for line in MEMORY_INFO.read_text().splitlines()) if MEMORY_INFO.is_file() else {}
    free = int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else None
    limit, used = cgroup("memory.max").strip(), cgroup("memory.current")
    if limit.isdigit() and int(limit) < total:
        total = int(limit)
        cached = dict(line.split() for line in cgroup("memory.stat").splitlines()).get("inactive_file", "0")
        free = min(total if free is None else free, total - int(used or 0) + int(cached))
    return total, free
