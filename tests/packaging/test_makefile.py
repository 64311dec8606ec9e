"""`make` while pip works: a line at least every 30 seconds, and pip's exit status."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("status", [0, 3])
def test_an_installation_says_that_it_works(status: int, tmp_path: Path) -> None:
    """A pip that takes 2 seconds, with `sleep` a hundred times as fast: each pip takes 200 s."""
    names = {
        "venv/bin/python": f"#!/bin/sh\n{shutil.which('sleep')} 2\nexit {status}\n",
        "bin/sleep": f'#!/bin/sh\n[ "$1" -le 30 ] && exec {shutil.which("sleep")} 0.$1\n',
    }
    for name, script in names.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    command = ["make", "-C", str(ROOT), f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}"]
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, str(tmp_path / "venv" / ".stamp-core")], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.count("still installing") >= (4 if status == 0 else 2), done
    assert (done.returncode == 0) == (tmp_path / "venv" / ".stamp-torch").exists() == (status == 0)
    assert (tmp_path / "venv" / ".stamp-core").exists() == (status == 0)
