"""`embrew runs`: what a folder holds. `embrew doctor`: whether embrew works here. `embrew cache`: what it keeps."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import typer
from rich.text import Text

from embrew.cli.console import Record, print_json, print_line, print_table
from embrew.files.names import user_cache
from embrew.inspection import Contents, inspect, percentages

STYLES = {
    "running": "cyan",
    "stopped": "yellow",
    "damaged": "bold red",
    "ok": "green",
    "warning": "yellow",
    "failed": "bold red",
}


def runs(folder: Path) -> Record:
    """Show what a folder holds, and how to resume or open it.

    Knows training runs, sweeps, encoders, exports, vectors, indexes, results and adaptations. Reads JSON files only.

    Args:
        folder (DIR): Folder that embrew wrote, or a folder that contains such folders.
    """
    contents = inspect(folder)
    if contents.subfolders:
        rows = [
            (Text(each.path.name, "bold"), each.kind, Text(each.state, STYLES.get(each.state, "")), each.summary)
            for each in contents.subfolders
        ]
        names = ("folder", "what it is", "state", "")
        print_table(names, rows, left=names, wraps=names)
    else:
        _show(contents)
    return asdict(contents)


def _show(contents: Contents) -> None:
    """Print a folder: its kind and state, its stages, what is wrong, and what to do."""
    state, summary = (
        (contents.state, STYLES.get(contents.state, "")),
        f"; {contents.summary}" if contents.summary else "",
    )
    print_line((str(contents.path), "bold"), f": {contents.kind}, ", state, summary)
    if contents.stages:
        rows = [
            (f"  {stage.name}", stage.state, stage.progress, percentages(stage.scores)) for stage in contents.stages
        ]
        print_table(("", "", "", ""), rows)
    for fact in contents.facts:
        print_line(f"  {fact}")
    for problem in contents.problems:
        print_line((f"  {problem}", "yellow"))
    for purpose, command in contents.commands.items():
        print_line(f"  {purpose}: ", (command, "bold"))


def doctor(*, self_test: bool = True) -> Record:
    """Examine this machine and test embrew, in about 10 seconds.

    Versions and devices are examined. Each line is ok, a warning or failed, with what to do. The exit code is 1 if a
    line has failed.

    Args:
        self_test: Open, train, save and export the shipped model.
    """
    from embrew.doctor import examine

    findings = []
    for finding in examine(self_test=self_test):
        row = asdict(finding) | {"value": finding.value.replace(str(Path.home()), "~")}
        findings.append(row)
        print_line((f"{finding.status:<8}", STYLES[finding.status]), f"{finding.name}: {row['value']}")
        if finding.advice:
            print_line(f"        {finding.advice}")
    counts = {name: sum(row["status"] == name for row in findings) for name in ("failed", "warning", "ok")}
    print_line(f"\n{counts['ok']} ok, {counts['warning']} warnings, {counts['failed']} failed")
    verdict = next(name for name, count in counts.items() if count)
    if verdict != "ok":
        print_line("for a bug report: embrew doctor --json")
    document: Record = {"status": verdict, "findings": findings}
    if verdict == "failed":
        print_json(document)
        raise typer.Exit(1)
    return document


def cache(*, clear: bool = False) -> Record:
    """Show or delete what embrew has converted and keeps.

    They are models of GGUF files, and rows of large data sets, in `embrew` in the user's cache, or in `$EMBREW_CACHE`.
    The files that they were made of are elsewhere.

    Args:
        clear: Delete them; they are converted again when they are needed.
    """
    folders = []
    for folder in sorted(path for part in ("gguf", "rows") for path in (user_cache() / part).glob("[!.]*")):
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        folders.append(
            {"folder": str(folder), "kind": {"gguf": "model", "rows": "rows"}[folder.parent.name], "bytes": size}
        )
        print_line(f"{size / 1e6:8,.0f} MB  ", (str(folder), "bold"), "  deleted" if clear else "")
        if clear:
            shutil.rmtree(folder, ignore_errors=True)
    if not folders:
        print_line(f"{user_cache()} holds no converted models or rows")
    return {"kept": folders, "deleted": clear}
