"""`embrew runs`: what a folder holds, where it stopped, and how to resume or open it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from embrew.cli.arguments import AsJson
from embrew.cli.console import out, print_json
from embrew.inspection import Found, inspect
from embrew.inspection.training import in_words

STYLES = {"running": "cyan", "stopped": "yellow", "damaged": "bold red"}


def runs(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder that embrew wrote, or a folder that contains such folders."),
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a folder holds, and how to resume or open it.

    Knows training runs, sweeps, encoders, exports, vectors, indexes, results and domain runs. Reads JSON files only.
    """
    found = inspect(folder)
    console = out()
    if found.holds:
        console.print(_table(found))
    else:
        _print(console, found)
    print_json(asdict(found))


def _print(console: Console, found: Found) -> None:
    """Print a folder: its kind and state, its stages, what is wrong, and what to do."""
    head = Text.assemble((str(found.path), "bold"), f": {found.kind}, ", (found.state, STYLES.get(found.state, "")))
    console.print(Text.assemble(head, f"; {found.summary}" if found.summary else ""), soft_wrap=True)
    if found.stages:
        stages = Table(box=None, pad_edge=False, show_header=False)
        for stage in found.stages:
            stages.add_row(f"  {stage.name}", stage.state, stage.progress, in_words(stage.scores))
        console.print(stages)
    for fact in found.facts:
        console.print(Text(f"  {fact}"), soft_wrap=True)
    for problem in found.problems:
        console.print(Text(f"  {problem}", style="yellow"), soft_wrap=True)
    for purpose, command in found.commands.items():
        console.print(Text.assemble(f"  {purpose}: ", (command, "bold")), soft_wrap=True)


def _table(found: Found) -> Table:
    """One row per folder."""
    table = Table(box=None, pad_edge=False)
    for column in ("folder", "what it is", "state", ""):
        table.add_column(column, overflow="fold")
    for each in found.holds:
        state = Text(each.state, style=STYLES.get(each.state, ""))
        table.add_row(Text(each.path.name, style="bold"), each.kind, state, Text(each.summary))
    return table
