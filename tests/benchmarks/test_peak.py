"""Peaks of memory are those of a step, not of what was built before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import peaks, torch
built = torch.ones(60_000_000)  # 240 MB, given back
del built
peaks.forget_peak()
before = peaks.peak_rss()
step = torch.ones(20_000_000)  # 80 MB
print(peaks.peak_rss() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks begin anew on Linux alone")
def test_a_step_is_not_hidden_in_what_building_took():
    folder = str(Path(__file__).parents[2] / "benchmarks")
    done = subprocess.run([sys.executable, "-c", CODE, folder], capture_output=True, text=True, check=True)
    assert 70 < float(done.stdout) < 100
