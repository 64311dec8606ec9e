"""Memory that a process of embrew takes apart from weights, gradients, moments and activations."""

from __future__ import annotations

import os
from pathlib import Path

STATUS = Path("/proc/self/statm")
USUAL = 600 << 20  # bytes, where it cannot be read
KERNELS = 600 << 20
"""Bytes of code that oneDNN generates for products of bfloat16 on a CPU; it keeps those of 1,024 sizes.

Measured with nano, whose memory stops growing after some ten steps; a larger model has no more sizes.
"""


def taken_by_process() -> int:
    """Return the bytes that this process has in memory: Python and the libraries that training imports too."""
    if not STATUS.is_file():
        return USUAL
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
