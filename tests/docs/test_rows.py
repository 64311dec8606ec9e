"""benchmarks/rows.md: complete against the papers, and every recipe, sweep, suite and analysis that it names exists."""

from __future__ import annotations

import runpy
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from embrew.cli.analyze import app
from embrew.recipe import build, list_recipes
from embrew.settings.yaml_files import list_shipped
from embrew.sweep.rows import read_sweep

ROOT = Path(__file__).parents[2]
ANALYSES: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "paper_rows.py"))
PAPERS: list[dict[str, Any]] = yaml.safe_load(SCRIPT["SOURCE"].read_text(encoding="utf-8"))["papers"]
COUNTS = {  # rows of the tables and figures as printed, counted in the papers
    "LLM2Comp": {"Table 1": 10, "Table 2": 15, "Tables 3 to 5": 3, "Equation 8 as printed": 1, "Figures": 13},
    "ESE": {"Table 1": 9, "Table 2": 7, "Tables 3 and 4": 6, "Figures": 8},
    "AutoRegEmbed": {"Table 1": 29, "Table 2": 6, "Figures": 3},
    "LBR": {
        "Table 1": 12,
        "Table 2": 4,
        "Table 3": 6,
        "Table 4": 2,
        "Table 5": 6,
        "Table 6": 4,
        "Separation Ratio": 1,
        "Figures": 3,
    },
    "EPIC": {
        "Table 1": 21,
        "Table 2": 5,
        "Table 3": 4,
        "Table 4": 8,
        "Table 5": 4,
        "Table 6": 4,
        "Tables 7 and 11": 2,
        "Table 8": 5,
        "Table 9": 3,
        "Table 10": 3,
        "Table 12": 3,
        "Figures": 8,
    },
}
ENTRIES = [
    pytest.param(entry, id=f"{paper['name']}, {part['part']}: {entry['rows'][0]}")
    for paper in PAPERS
    for part in paper["parts"]
    for entry in part["entries"]
]
VALUES = ("--suite", "--data", "--sweep", "-o", "--generator", "--demos", "--instruction", "--counts", "--prompt-name")


def test_every_row_of_the_papers_is_there_once():
    found = {
        paper["name"]: {
            part["part"]: [row for entry in part["entries"] for row in entry["rows"]] for part in paper["parts"]
        }
        for paper in PAPERS
    }
    assert {name: {part: len(rows) for part, rows in parts.items()} for name, parts in found.items()} == COUNTS
    assert sum(sum(parts.values()) for parts in COUNTS.values()) == len(
        [row for p in ENTRIES for row in p.values[0]["rows"]]
    )
    for name, parts in found.items():
        for part, rows in parts.items():
            assert len(set(rows)) == len(rows), f"{name}, {part}"


def test_the_page_is_written_from_the_file():
    assert SCRIPT["PAGE"].read_text(encoding="utf-8") == SCRIPT["page"](PAPERS), "run make tables"


@cache
def check(recipe: str, *overrides: str) -> None:
    build.check_recipe(build.load_recipe(recipe, overrides))


@cache
def rows_of(sweep: str, recipe: str) -> tuple[str, ...]:
    return tuple(row.name for row in read_sweep(sweep, recipe).rows)


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_it_names_exists(entry):
    assert set(entry) <= {"rows", "how", "at", "state", "results", "needs", "note", "here"}
    assert (entry["state"] == "needs") == ("needs" in entry) and (entry["state"] == "run") == ("results" in entry)
    assert "here" not in entry or entry["state"] == "run"
    if "results" in entry and (SCRIPT["BENCHMARKS"] / "results").exists():  # an unpacked sdist has none
        assert (SCRIPT["BENCHMARKS"] / entry["results"]).is_file()
    if not entry["how"].startswith("embrew "):
        assert (ROOT / entry["how"].split(" in ")[-1]).is_file()
        return
    _, verb, *words = shlex.split(entry["how"])
    options = {word: words[i + 1] for i, word in enumerate(words) if word in VALUES}
    plain = [word for i, word in enumerate(words) if word not in VALUES and words[i - 1] not in VALUES]
    if "--suite" in options and options["--suite"] != "SUITE":
        assert options["--suite"] in list_shipped("suites")
    if verb == "analyze":
        parameters = ANALYSES[plain[0]].params
        assert set(options) <= {name for parameter in parameters for name in parameter.opts}
        required = [parameter.opts for parameter in parameters if parameter.required and parameter.opts[0][0] == "-"]
        assert all(set(names) & set(options) for names in required)
    overrides = [word for word in plain[1:] if "=" in word and verb in ("train", "evaluate")]
    is_recipe = plain[0] in list_recipes()
    assert (
        is_recipe
        or verb in ("analyze", "context", "compare", "recipe")
        or "needs" in entry
        or "DIR" in plain[0]
        or (verb == "evaluate" and plain[0].startswith("OUT"))
    )
    if is_recipe:
        check(plain[0], *overrides)
    if verb == "recipe":
        assert plain[0] == "show" and plain[1] in list_recipes()
    at = entry.get("at", [])
    names = [at] if isinstance(at, str) else at
    assert not names or "--sweep" in options
    if "--sweep" in options:
        assert set(names) <= set(rows_of(options["--sweep"], plain[0]))
        assert isinstance(at, str) or len(names) in (0, len(entry["rows"]))
