"""`embrew doctor`: what this machine offers, and whether embrew works on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from embrew.cli.arguments import AsJson
from embrew.cli.console import out, print_json

STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def doctor(
    self_test: Annotated[
        bool, typer.Option("--self-test/--no-self-test", help="Open, train, save and export the shipped model.")
    ] = True,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Folder for your results; its disk is examined.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Examine this machine and test embrew, in about 10 seconds.

    Versions, hardware, disks and file systems are examined. Each line is ok, a warning or failed, with what to do. The
    exit code is 1 if a line has failed.
    """
    from embrew.doctor import Finding, as_report, examine, worst
    from embrew.doctor.private import without_private

    console, findings = out(), []

    def show(finding: Finding) -> None:
        _print(console, finding.status, f"{finding.name}: {without_private(finding.value)}")
        if finding.advice:
            console.print(Text(f"        {without_private(finding.advice)}"), soft_wrap=True)

    for finding in examine(folder, self_test=self_test):
        findings.append(finding)
        show(finding)
    status = worst(findings)
    counts = {name: sum(finding.status == name for finding in findings) for name in STYLES}
    console.print(f"\n{counts['ok']} ok, {counts['warning']} warnings, {counts['failed']} failed")
    if status != "ok":
        console.print("for a bug report: embrew doctor --json")
    print_json(as_report(findings))
    if status == "failed":
        raise typer.Exit(1)


def _print(console: Console, status: str, text: str) -> None:
    console.print(Text.assemble((f"{status:<8}", STYLES[status]), text), soft_wrap=True)
