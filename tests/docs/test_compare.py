"""The guide on comparing models names every option of the command, and no other."""

import re
from pathlib import Path

import typer.main

from embrew.cli import app

GUIDE = Path(__file__).parents[2] / "docs/how-to/compare.md"


def test_the_guide_lists_every_option() -> None:
    command = typer.main.get_command(app).get_command(None, "compare")  # type: ignore[attr-defined, arg-type]
    options = {option for one in command.params for option in one.opts if option.startswith("--")}
    table = GUIDE.read_text(encoding="utf-8").partition("## Options")[2].partition("##")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"--[a-z]+", row)} == options - {"--help"}
