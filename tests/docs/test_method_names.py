"""The pages of the methods name code, recipes, overrides and settings that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from pkgutil import resolve_name

import pytest
import yaml

from embrew.recipe import Recipe, list_recipes
from embrew.recipe.build import objective

METHODS = Path(__file__).parents[2] / "docs" / "methods"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(METHODS.glob("*.md"))}
LINK = re.compile(r"\]\(\.\./reference/\w+\.md#(embrew[\w.]*)\)")
RECIPE = re.compile(r"`((?:llm2comp|ese|autoregembed|lbr|epic|baselines|distillation)/[\w.-]+)`")
OBJECTIVE = re.compile(r"`objective: (\{type: [^`]*\})`")
TABLES = {"lbr": "lbr/medical-nano", "epic": "epic/nano"}  # rows of ablations, as overrides of a recipe
SHORT = {"OBJECTIVE": "stages.supervised.objective", "DEMOS": "encoder.demonstrations"}


def overrides(page: str) -> list[list[str]]:
    """Return the `KEY=VALUE …` of each code span in the table of ablations, as a shell passes them, with full keys."""
    (table,) = (part for part in PAGES[page].split("\n\n") if re.match(r"\|( Table \|)? Row \| Overrides? \|", part))
    spans = [shlex.split(code) for code in re.findall(r"`([^`=]+=[^`]+)`", table)]
    return [[re.sub(r"^[A-Z]+", lambda short: SHORT[short[0]], value) for value in values] for values in spans]


@pytest.mark.parametrize("page", PAGES)
def test_links_to_the_reference_are_names_of_the_package(page):
    names = LINK.findall(PAGES[page])
    assert len(names) >= 3
    for name in names:
        assert resolve_name(name) is not None, name


@pytest.mark.parametrize("page", PAGES)
def test_recipes_that_are_named_are_shipped(page):
    names = {name for name in RECIPE.findall(PAGES[page]) if not name.endswith("*")}
    assert names and names <= set(list_recipes())


@pytest.mark.parametrize("page", PAGES)
def test_objectives_that_are_shown_can_be_built(page):
    shown = [text for text in OBJECTIVE.findall(PAGES[page]) if "…" not in text]
    assert shown or page in ("ese", "baselines")
    for text in shown:
        objective(yaml.safe_load(text))


@pytest.mark.parametrize(("page", "values"), [(page, values) for page in TABLES for values in overrides(page)])
def test_overrides_of_ablations_are_understood(page, values):
    recipe = Recipe.load(TABLES[page], values)
    for stage in recipe.stages:
        objective(stage.objective)


def test_rows_of_ablations_are_found():
    assert len(overrides("lbr")) == 5 and len(overrides("epic")) == 14
