"""What the plans of the benchmarks name is there: recipes, and suites."""

from pathlib import Path

import pytest
import yaml

from embrew.evaluation.suites import fetchable
from embrew.recipe import Recipe

ROOT = Path(__file__).parents[2]
PLANS = {path: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "benchmarks" / "plans").glob("*.yaml"))}
RECIPES = sorted({row["recipe"] for plan in PLANS.values() for row in plan.get("rows", ()) if "recipe" in row})
SUITES = sorted({plan["suite"] for plan in PLANS.values() if "suite" in plan})
OWN = sorted((ROOT / "benchmarks" / "recipes").rglob("*.yaml"))


def test_plans_and_scripts_use_every_recipe_and_suite_of_the_benchmarks():
    folder = ROOT / "benchmarks"
    scripts = " ".join(path.read_text() for path in folder.glob("*.py"))
    for path in OWN:
        assert str(path.relative_to(ROOT)) in RECIPES or f"{path.parent.name}/{path.stem}" in scripts, path
    own = {path.stem for path in (folder / "suites").iterdir()}
    # rag is the suite of one size that plans/suites has at several; quick is of single runs
    assert own - {"quick", "rag"} <= {Path(suite).stem for suite in SUITES}


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_of_a_row_is_there(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    recipe = Recipe.load(name)
    if name.startswith(
        "benchmarks/recipes/"
    ):  # a row that trains on these sets keeps them, whatever the package's reads
        paths = [path for stage in recipe.stages for config in stage.datasets for path in config.paths]
        assert paths and all(path.startswith("$EMBREW_DATA/") for path in paths)


@pytest.mark.parametrize("name", SUITES)
def test_the_suite_of_a_plan_is_there(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    tasks, sources, folders = fetchable(name)
    assert tasks or sources or folders
