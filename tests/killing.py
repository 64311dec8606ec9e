"""Kill a command of the command line at random moments, and look at what it leaves each time."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def start(arguments: Sequence[object], *, place: Path) -> subprocess.Popen:
    """Start `embrew` in a process of its own, with its temporary folder in `place`."""
    (place / "tmp").mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(place / "tmp")}
    with (place / "log").open("w") as log:
        command = [sys.executable, "-m", "embrew", *map(str, arguments)]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def run(arguments: Sequence[object], *, place: Path) -> float:
    """Run `embrew` to its end; return the seconds that it took."""
    began = time.monotonic()
    assert start(arguments, place=place).wait(600) == 0, (place / "log").read_text()[-2000:]
    return time.monotonic() - began


def killed(arguments: Sequence[object], *, place: Path, watched: Path, seconds: float, draw: random.Random) -> None:
    """Run `embrew` and kill it: at a moment of the whole run, or soon after something is written into `watched`."""
    process, began = start(arguments, place=place), time.monotonic()
    moment, known = draw.uniform(0, seconds), set(partial(watched))
    if draw.random() < 0.5:
        while process.poll() is None and not set(partial(watched)) - known:
            time.sleep(0.001)
        moment = time.monotonic() - began + draw.uniform(0, draw.choice([0.003, 0.03, seconds / 4]))
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0, began + moment - time.monotonic()))
    process.kill()
    process.wait()


def partial(folder: Path) -> list[str]:
    """Temporary files and folders in a folder and those below."""
    return [
        f"{place}/{name}"
        for place, folders, names in os.walk(folder)
        for name in (*folders, *names)
        if name.startswith(".") and name.endswith(".partial")
    ]


def content(folder: Path) -> dict[str, str]:
    """sha256 of all files below a folder, or of a file, by name."""
    files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
