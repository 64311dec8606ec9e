"""Ray on this machine, for tests: no usage statistics, no dashboard, nothing in the home folder, no process left."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.corpus.dying import DEATHS

ROOT = Path(__file__).parents[1]
STARTS = 3  # attempts


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """Yield the environment of a Ray of its own, which ends with this context."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # the names of sockets must be short
        environ = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        yield {
            **environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path]),
            "RAY_TMPDIR": folder,
            "RAY_AUTH_TOKEN": secrets.token_hex(),
            "RAY_USAGE_STATS_ENABLED": "0",
            DEATHS: str(Path(folder) / "deaths"),
        }


@contextmanager
def ray_on_this_machine() -> Iterator[Path]:
    """Start Ray for this process; yields the folder that `tests.corpus.dying` reads."""
    ray = pytest.importorskip("ray", reason='pip install "embrew[ray]" to run this test')
    with environment() as environ, pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in environ.items():
            patch.setenv(name, value)
        for attempt in range(STARTS):
            with ending_what_starts(ray.shutdown):
                try:
                    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20)
                except Exception:  # it gives up after 30 seconds, which a busy machine may need for its processes
                    if attempt == STARTS - 1:
                        raise
                    continue
                yield Path(environ[DEATHS])
                return


@contextmanager
def ending_what_starts(end: Callable[[], Any], root: psutil.Process | None = None) -> Iterator[None]:
    """Call `end` in the end, and kill those processes started by this one, or by another, that are still there."""
    root = root or psutil.Process()
    before = set(root.children(recursive=True))
    try:
        yield
    finally:
        started = [each for each in root.children(recursive=True) if each not in before]
        try:
            end()
        finally:
            for left in psutil.wait_procs(started, timeout=20)[1]:
                left.kill()
            psutil.wait_procs(started, timeout=20)
