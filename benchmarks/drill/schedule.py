"""Run the drill's items one after another, each in its own process, within the minutes of a call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drill.record import Record, Result

AGAIN = 1.25  # an item that was stopped after some seconds is begun again if this many times as many are left
SHOWN = 1500  # last characters of a failed item's output that are printed


@dataclass(frozen=True, kw_only=True)
class Item:
    """A part of the drill.

    Attributes:
        name: as given on the command line.
        title: what it does, in a line.
        run: `module:function` of what runs in the item's process; it returns figures and checks.
        given: keyword arguments.
        seconds: that it is expected to take on a GPU; it is not begun with fewer left.
    """

    name: str
    title: str
    run: str
    given: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 60.0


Start = Callable[[Item, float], Result]
Say = Callable[[str], None]


def run_items(
    items: Sequence[Item],
    record: Record,
    start: Start,
    *,
    seconds: float,
    changed: Callable[[], None],
    say: Say = print,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the items that are not settled and fit in the time left; those that were stopped before come last.

    Args:
        items: in order.
        record: where results are kept.
        start: runs an item for at most some seconds, and returns its result.
        seconds: of this call.
        changed: called after every item, to write the report.
        say: prints a line.
        clock: seconds.
    """
    deadline = clock() + seconds
    waiting = [item for item in items if not record.is_settled(item.name)]
    for item in sorted(waiting, key=lambda item: record.attempts(item.name)):
        needed, left = max(item.seconds, AGAIN * record.took(item.name)), deadline - clock()
        if needed > left:
            say(f"{item.name}: not begun; it may take {needed:.0f} s, and {left:.0f} s are left")
            continue
        record.begin(item.name)
        began = clock()
        try:
            result = start(item, left)
        except BaseException:
            record.end(item.name, {"status": "stopped", "reason": "the drill was ended while it ran"}, clock() - began)
            changed()
            raise
        record.end(item.name, result, clock() - began)
        changed()
        say(f"{item.name}: {in_words(result, clock() - began)}")


def in_words(result: Result, seconds: float) -> str:
    """Return a line on a result."""
    failed = [name for name, held in result.get("checks", {}).items() if not held]
    why = result.get("reason") or ", ".join(f"not so: {name}" for name in failed)
    return f"{result['status']} in {seconds:.0f} s" + (f"; {why}" if why else "")


def in_process(item: Item, limit: float, *, command: Sequence[str], log: Path, say: Say = print) -> Result:
    """Run an item as a process of its own; its output goes to a file.

    A crash, a signal or an exit without a result is a failure. At the time limit the process is killed.

    Args:
        item: what to run.
        limit: seconds.
        command: the words of the process, to which the file of the result is added.
        log: file of its output.
        say: prints the end of the output of an item that failed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-drill-") as folder, log.open("w") as output:
        answer = Path(folder) / "result.json"
        process = subprocess.Popen([*command, str(answer)], stdout=output, stderr=output, start_new_session=True)
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)  # the log then says where it was
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
            return {"status": "stopped", "reason": f"stopped at the end of the call, after {limit:.0f} s"}
        finally:
            _kill_group(process)
        if answer.is_file():
            result: Result = json.loads(answer.read_text())
        else:
            result = {"status": "failed", "reason": f"its process {_how(code)} without a result", "checks": {}}
    if result["status"] == "failed":
        say("\n".join(f"    {line}" for line in log.read_text(errors="replace")[-SHOWN:].splitlines()))
    return result


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End an item's process and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def command_of(name: str, *options: str) -> list[str]:
    """Return the words that run an item as a process."""
    return [sys.executable, str(Path(__file__).parents[1] / "gpu_drill.py"), *options, "--child", name]
