"""Findings, the lines of `embrew doctor`, and how a probe is run so that its errors become findings."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """Result of a probe.

    Attributes:
        name: what was examined.
        status: `ok`; `warning`: embrew works, with a limit; `failed`: something does not work, or not as promised.
        value: what was found, in one line.
        advice: what the user should do; empty where all is well.
        details: plain data for a bug report.
        seconds: how long it took.
    """

    name: str
    status: Status
    value: str
    advice: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


Probe = Callable[[], "Finding | Iterable[Finding]"]


def run_probe(name: str, probe: Probe) -> list[Finding]:
    """Run a probe; an error becomes a failed finding after those that the probe has yielded."""
    findings: list[Finding] = []
    began = time.perf_counter()

    def add(finding: Finding) -> None:
        nonlocal began
        now = time.perf_counter()
        findings.append(replace(finding, seconds=round(now - began, 3)))
        began = now

    try:
        found = probe()
        for finding in [found] if isinstance(found, Finding) else found:
            add(finding)
    except (Exception, SystemExit) as error:
        add(failure(name, error))
    return findings


def failure(name: str, error: BaseException) -> Finding:
    """Return the finding for an unexpected error, with the lines of code that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno} {frame.name}" for frame in frames]
    said = next(iter(str(error).splitlines()), "")
    return Finding(
        name,
        "failed",
        f"{type(error).__name__}: {said}"[:300],
        "report it with the output of embrew doctor --json",
        {"error": type(error).__name__, "message": str(error)[:2000], "places": places[-8:]},
    )


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status of all findings."""
    statuses = {finding.status for finding in findings}
    return "failed" if "failed" in statuses else "warning" if "warning" in statuses else "ok"
