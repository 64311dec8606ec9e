"""Run all probes in order; those that import torch run in a separate process."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from embrew.doctor import child, disk, machine, packages
from embrew.doctor.finding import Finding, Probe, run_probe, worst
from embrew.doctor.private import without_private

PATIENCE = 300.0  # seconds that a single probe may take
HARDWARE = {
    "threads": "embrew.doctor.devices:threads",
    "instructions": "embrew.doctor.devices:instructions",
    "accelerator": "embrew.doctor.devices:accelerators",
    "bfloat16": "embrew.doctor.devices:dtypes",
    "matrix product": "embrew.doctor.devices:multiply",
}
SELF_TEST = {
    "self-test: open nano": "embrew.doctor.nano:open_nano",
    "self-test: vectors": "embrew.doctor.nano:vectors",
    "self-test: padding": "embrew.doctor.nano:padding",
    "self-test: attention": "embrew.doctor.nano:attention",
    "self-test: bfloat16": "embrew.doctor.nano:half",
    "self-test: training": "embrew.doctor.nano:training",
    "self-test: speed": "embrew.doctor.nano:speed",
}


def light(folder: Path) -> dict[str, Probe]:
    """Return the quick probes without torch; `folder` is the user's folder for results."""
    return {
        "python": packages.python,
        "packages": packages.packages,
        "extras": packages.extras,
        "system": machine.system,
        "cpu": machine.cpu,
        "memory": machine.memory,
        "environment": machine.environment,
        "disk": partial(disk.space, folder),
        "file system": partial(disk.file_system, folder),
    }


def examine(folder: str | Path = ".", *, self_test: bool = True) -> Iterator[Finding]:
    """Yield what each probe finds, as it is found. An error, a crash or a hang of one does not end the others.

    Args:
        folder: where results are written; its disk and file system are examined.
        self_test: also open, train, save and export the shipped model.
    """
    for name, probe in light(Path(folder)).items():
        yield from run_probe(name, probe)
    yield from in_processes({**HARDWARE, **(SELF_TEST if self_test else {})})


def in_processes(probes: Mapping[str, str], *, patience: float = PATIENCE) -> Iterator[Finding]:
    """Run probes in another process, and in a new one after each that ended its process or took too long.

    Args:
        probes: names, and `module:function` of each.
        patience: seconds that one of them may take.
    """
    left = list(probes)
    while left:
        begun = left[0]
        ended: Ended | None = None
        for said in _said(probes, left, patience):
            match said:
                case Finding():
                    yield said
                case Ended():
                    ended = said
                case _:
                    begun = said
        left = [] if begun == child.END else left[left.index(begun) + 1 :]
        if ended is not None:
            advice = "report it with the output of embrew doctor --json"
            yield Finding(begun, "failed", ended.how, advice, {"stderr": ended.words})


class Ended(NamedTuple):
    """Return the finding of a process that crashed: its exit status and its last output."""

    how: str
    words: str


def _said(probes: Mapping[str, str], names: Sequence[str], patience: float) -> Iterator[Finding | str | Ended]:
    """Yield the reports of a process: findings, names of probes that begin, and a failed finding if it crashed."""
    reads, writes = os.pipe()
    command = [sys.executable, "-m", child.__name__, str(writes), *(f"{name}={probes[name]}" for name in names)]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
        process = subprocess.Popen(command, pass_fds=(writes,), stdout=words, stderr=words, stdin=subprocess.DEVNULL)
        os.close(writes)
        try:
            yield from map(child.read, _lines(reads, patience))
            code = process.wait(timeout=patience)
            how = "" if not code else _how(code)
        except subprocess.TimeoutExpired:
            how = f"took more than {patience:.0f} s"
        finally:
            os.close(reads)
            process.kill()  # has no effect on one that has ended
            process.wait()
        if how:
            words.seek(0)
            yield Ended(how, words.read()[-2000:])


def _lines(pipe: int, patience: float) -> Iterator[str]:
    """Yield the lines of a pipe until it is closed.

    Raises:
        subprocess.TimeoutExpired: none came for `patience` seconds.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        kept = b""
        while selector.select(patience):
            block = os.read(pipe, 1 << 16)
            if not block:
                return
            *lines, kept = (kept + block).split(b"\n")
            yield from (line.decode() for line in lines)
    raise subprocess.TimeoutExpired("probe", patience)


def _how(code: int) -> str:
    return f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"


def as_report(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all findings as plain data for a bug report: no home folder, no user name, no token."""
    report = {
        "status": worst(findings),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "findings": [asdict(finding) for finding in findings],
    }
    cleaned: dict[str, Any] = without_private(report)
    return cleaned
