"""Run Python in a process of its own, which has imported nothing of embrew."""

from __future__ import annotations

import subprocess
import sys


def run_fresh(code: str, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run code as `python -c code arguments...`; return its exit status and what it wrote."""
    return subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True, check=False)
