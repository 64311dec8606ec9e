"""Run Python in a process of its own, which has imported nothing of embrew."""

from __future__ import annotations

import subprocess
import sys

NOT_HERE = "import sys; sys.path[:] = filter(None, sys.path)\n"
"""Begins what `python -c` runs: modules are not taken from the current folder. `-P` does this from Python 3.11 on."""


def run_fresh(code: str, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run code as `python -c code arguments...`; return its exit status and what it wrote."""
    return subprocess.run([python, "-c", NOT_HERE + code, *arguments], capture_output=True, text=True, check=False)
