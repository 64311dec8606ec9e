"""Memory that a process of embrew takes before it holds a weight."""

from __future__ import annotations

import os
from pathlib import Path

STATUS = Path("/proc/self/statm")
USUAL = 600 << 20  # bytes, where it cannot be read


def taken_by_process() -> int:
    """Return the bytes that this process has in memory: Python and the libraries that training imports too."""
    if not STATUS.is_file():
        return USUAL
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
