"""`embrew runs`: what a folder holds, where it stopped, and how to resume or open it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from embrew.cli.arguments import AsJson
from embrew.cli.console import out, print_json, print_line
from embrew.inspection import Contents, inspect, percentages

STYLES = {"running": "cyan", "stopped": "yellow", "damaged": "bold red"}


def runs(folder: Path, *, as_json: AsJson = False) -> None:
    """Show what a folder holds, and how to resume or open it.

    Knows training runs, sweeps, encoders, exports, vectors, indexes, results and adaptations. Reads JSON files only.

    Args:
        folder (DIR): Folder that embrew wrote, or a folder that contains such folders.
    """
    contents = inspect(folder)
    console = out()
    if contents.subfolders:
        console.print(_table(contents))
    else:
        _print(console, contents)
    print_json(asdict(contents))


def _print(console: Console, contents: Contents) -> None:
    """Print a folder: its kind and state, its stages, what is wrong, and what to do."""
    head = Text.assemble(
        (str(contents.path), "bold"), f": {contents.kind}, ", (contents.state, STYLES.get(contents.state, ""))
    )
    console.print(Text.assemble(head, f"; {contents.summary}" if contents.summary else ""), soft_wrap=True)
    if contents.stages:
        stages = Table(box=None, pad_edge=False, show_header=False)
        for stage in contents.stages:
            stages.add_row(f"  {stage.name}", stage.state, stage.progress, percentages(stage.scores))
        console.print(stages)
    for fact in contents.facts:
        print_line(f"  {fact}")
    for problem in contents.problems:
        console.print(Text(f"  {problem}", style="yellow"), soft_wrap=True)
    for purpose, command in contents.commands.items():
        console.print(Text.assemble(f"  {purpose}: ", (command, "bold")), soft_wrap=True)


def _table(contents: Contents) -> Table:
    """One row per folder."""
    columns = [Column(name, overflow="fold") for name in ("folder", "what it is", "state", "")]
    table = Table(*columns, box=None, pad_edge=False)
    for folder in contents.subfolders:
        state = Text(folder.state, style=STYLES.get(folder.state, ""))
        table.add_row(Text(folder.path.name, style="bold"), folder.kind, state, Text(folder.summary))
    return table
