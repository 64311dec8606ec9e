"""Kill a command of the command line at random moments, again and again, and look at what it leaves each time."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
LIMIT = 600.0  # seconds for one run


@dataclass
class Found:
    """What a loop found: one line of a report."""

    name: str
    seed: int
    kills: int = 0
    writing: int = 0  # kills at a moment when something was being written
    finished: int = 0  # runs that ended before their moment came
    states: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        states = ", ".join(f"{count} times {state}" for state, count in sorted(self.states.items()))
        return (
            f"{self.name}: seed {self.seed}, {self.kills} kills, {self.writing} of them while it was writing, "
            f"{self.finished} runs ended before; found afterwards: {states}; {self.seconds:.0f} s"
        )


class Running:
    """`embrew` in a process group of its own, with its temporary folder in `place`."""

    def __init__(self, arguments: Sequence[object], *, place: Path) -> None:
        (place / "tmp").mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(place / "tmp")}
        command = [sys.executable, "-m", "embrew", *map(str, arguments)]
        self.began = time.monotonic()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 -- as long as the process
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.said, stderr=subprocess.STDOUT, start_new_session=True
        )

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.began

    def wait(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait until something is so, or the process has ended; whether it still runs."""
        while self.process.poll() is None and not until():
            assert self.seconds < LIMIT
            time.sleep(0.001)
        return self.process.poll() is None

    def check(self) -> None:
        """Raise unless it ended, and ended well."""
        self.said.seek(0)
        assert self.process.returncode == 0, self.said.read().decode()[-2000:]

    def kill(self) -> None:
        """Kill it; processes that it started continue."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def clear(self) -> None:
        """End what it had started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def partial(folder: Path) -> dict[str, int]:
    """Temporary files and folders in a folder and those below, with their inodes."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            if name.startswith(".") and name.endswith(".partial"):
                with suppress(FileNotFoundError):
                    found[f"{place}/{name}"] = Path(place, name).stat().st_ino
    return found


def run(arguments: Sequence[object], *, place: Path) -> None:
    """Run `embrew` to its end."""
    running = Running(arguments, place=place)
    running.wait()
    running.check()


def measured(arguments: Sequence[object], watched: Path, *, place: Path) -> tuple[float, float]:
    """Run `embrew` to its end: seconds in all, and until it began to write."""
    running = Running(arguments, place=place)
    running.wait(lambda: bool(partial(watched)))
    writes_from = running.seconds
    running.wait()
    running.check()
    return running.seconds, writes_from


def loop(
    name: str,
    arguments: Sequence[object],
    watched: Path,
    state: Callable[[], str],
    *,
    place: Path,
    kills: int,
    seed: int,
    times: tuple[float, float],
    again: Callable[[], None] = lambda: None,
    until: Callable[[], bool] = lambda: False,
) -> Found:
    """Kill a command `kills` times, and ask after each what state things are in.

    Every other moment is drawn from the whole run; the others from the time after something is being written, a third
    of them from the first 3 ms, a third from the first 30 ms.

    Args:
        name: for the report.
        arguments: of `embrew`.
        watched: the folder whose temporary files and folders show that something is being written.
        state: says in a word what is found; raises where it should not be found.
        place: where temporary files of the process go.
        kills: how many.
        seed: of the moments.
        times: seconds that an undisturbed run takes, and until it begins to write; see `measured`.
        again: called after a run that ended before its moment, and after a kill that left "the new one".
        until: says that all is done; nothing is killed from then on.
    """
    generator, found, began = random.Random(seed), Found(name, seed), time.monotonic()
    whole, writes_from = times
    while found.kills < kills and not until():
        assert found.finished < 4 * kills, "moments come too late"
        known = partial(watched)
        running = Running(arguments, place=place)

        def writes(known: dict[str, int] = known) -> bool:
            return any(known.get(name) != inode for name, inode in partial(watched).items())

        moment = generator.uniform(0, whole)
        if (found.kills + found.finished) % 2:
            running.wait(writes)
            moment = running.seconds + generator.uniform(0, generator.choice([0.003, 0.03, whole - writes_from]))
        if running.wait(lambda running=running, moment=moment: running.seconds > moment):
            found.writing += writes()
            running.kill()
            what = state()
            running.clear()
            found.kills += 1
            found.states[what] = found.states.get(what, 0) + 1
            if what == "the new one":
                again()
            continue
        running.check()
        found.finished += 1
        assert not partial(watched), "a run that ended left temporary files"
        again()
    found.seconds = time.monotonic() - began
    sys.stdout.write(f"\n{found}\n")
    sys.stdout.flush()
    return found


def content(folder: Path, *, leave_out: Sequence[str] = ()) -> dict[str, str]:
    """sha256 of all files below a folder, or of a file, by name."""
    if folder.is_file():
        return {"": hashlib.sha256(folder.read_bytes()).hexdigest()}
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    named = {str(path.relative_to(folder)): path for path in files}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in named.items() if name not in leave_out
    }
