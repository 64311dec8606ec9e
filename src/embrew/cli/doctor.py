"""`embrew doctor`: what this machine offers, and whether embrew works on it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer
from rich.text import Text

from embrew.cli.arguments import AsJson
from embrew.cli.console import out, print_json

STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def doctor(*, self_test: bool = True, as_json: AsJson = False) -> None:
    """Examine this machine and test embrew, in about 10 seconds.

    Versions and devices are examined. Each line is ok, a warning or failed, with what to do. The exit code is 1 if a
    line has failed.

    Args:
        self_test: Open, train, save and export the shipped model.
    """
    from embrew.doctor import examine

    console, findings = out(), []
    for finding in examine(self_test=self_test):
        findings.append(finding)
        status = (f"{finding.status:<8}", STYLES[finding.status])
        console.print(Text.assemble(status, f"{finding.name}: {_without_home(finding.value)}"), soft_wrap=True)
        if finding.advice:
            console.print(Text(f"        {finding.advice}"), soft_wrap=True)
    counts = {name: sum(finding.status == name for finding in findings) for name in STYLES}
    console.print(f"\n{counts['ok']} ok, {counts['warning']} warnings, {counts['failed']} failed")
    verdict = next(name for name in ("failed", "warning", "ok") if counts[name])
    if verdict != "ok":
        console.print("for a bug report: embrew doctor --json")
    rows = [asdict(finding) | {"value": _without_home(finding.value)} for finding in findings]
    print_json({"status": verdict, "findings": rows})
    if verdict == "failed":
        raise typer.Exit(1)


def _without_home(text: str) -> str:
    return text.replace(str(Path.home()), "~")
