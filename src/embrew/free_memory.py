"""Memory that this machine, or its container, has, and what is free of it."""

from __future__ import annotations

import os
from pathlib import Path

from embrew.threads import cgroup

INFO = Path("/proc/meminfo")


def total_and_free() -> tuple[int, int | None]:
    """Return bytes of memory in all, and free bytes: caches that are given up on demand are free; None: unknown."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines = dict(line.split(":", 1) for line in INFO.read_text().splitlines()) if INFO.is_file() else {}
    free = int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else None
    limit, used = cgroup("memory.max").strip(), cgroup("memory.current")
    if limit.isdigit() and int(limit) < total:
        total = int(limit)
        cached = dict(line.split() for line in cgroup("memory.stat").splitlines()).get("inactive_file", "0")
        free = min(total if free is None else free, total - int(used or 0) + int(cached))
    return total, free
