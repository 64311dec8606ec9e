"""The plans of ESE on all-MiniLM-L6-v2 at tuned rates: rows differ in what they say, and one criterion chooses."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from embrew import assembly
from embrew.recipe import Recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from surface_tables import chosen, criterion

PLANS = Path(__file__).parents[2] / "benchmarks" / "plans"
ROWS = ["ESE", "2DMSE", "base loss", "ESE, align_norm l2", "ESE, preset paper", "MRL", "ESE, preset official"]
POOLED = [f"{pooling}: {row}" for pooling, row in product(("mean", "CLS"), ROWS)]


def plan_of(name: str, **replaced: str) -> Any:
    text = (PLANS / f"{name}.yaml").read_text()
    for old, new in replaced.items():
        text = text.replace(f"{old}=null", f"{old}={new}")
    return yaml.safe_load(text)


def trained(plan: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Recipe]]:
    monkeypatch.setenv("MINILM", "nano")  # only settings are read
    found: dict[str, list[Recipe]] = {}
    for row in plan["rows"]:
        if row["recipe"] == "ese/minilm":
            recipe = Recipe.load("ese/minilm", [*row.get("set", [])])
            found.setdefault(row["row"], []).append(recipe)
    return found


def test_four_rates_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("ese-minilm-tuned-rates")
    rows = trained(plan, monkeypatch)
    rates = {"5e-5": 5e-5, "1e-4": 1e-4, "2e-4": 2e-4, "4e-4": 4e-4}
    assert set(rows) == {f"{row}, {rate}" for row, rate in product(POOLED, rates)}
    seen = Counter()
    for name, (recipe,) in rows.items():
        stage, row = recipe.stages[0], name.rpartition(", ")[0]
        objective: Any = assembly.objective(stage.objective)
        assert stage.training["learning_rate"] == rates[name.rpartition(", ")[2]]
        assert recipe.encoder.pooling.mode == ("cls" if name.startswith("CLS") else "mean")
        assert getattr(objective, "preset", None) == (
            None if not row.split(": ")[1].startswith("ESE") else row.partition("preset ")[2] or "default"
        )
        assert (getattr(objective, "align_norm", "none") == "l2") == ("l2" in row)
        seen[str(recipe.stages[0].objective), recipe.encoder.pooling.mode] += 1
    assert set(seen.values()) == {4} and len(seen) == len(POOLED)
    assert len({(str(one.stages[0].data), str(one.stages[0].batch)) for (one,) in rows.values()}) == 1


def test_the_tuned_plan_has_the_rates_that_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One anchor for each row and pooling, used with every seed; a row whose rates were not searched is not trained."""
    best = json.loads((PLANS.parent / "results" / "ese-minilm-tuned-rates.json").read_text())["chosen"]
    assert set(best) <= set(POOLED)
    open_rates = trained(plan_of("ese-minilm-tuned"), monkeypatch)
    with pytest.raises(ValueError, match="learning_rate"):
        for recipe in (one for several in open_rates.values() for one in several):
            assembly.check_recipe(recipe)
    plan = plan_of("ese-minilm-tuned", **{"stages.0.training.learning_rate": "0.5"})
    rows = trained(plan, monkeypatch)
    assert list(rows) == POOLED
    seeds = Counter((row["row"], *row["seeds"]) for row in plan["rows"] if "seeds" in row)
    assert seeds == Counter((row, seed) for row, seed in product(POOLED, (42, 43, 44)))
    assert all(str(one.stages) == str(three.stages) for one, _, three in rows.values())
    searched = trained(plan_of("ese-minilm-tuned-rates"), monkeypatch)
    for name, (recipe, *_) in rows.items():
        same = searched[best.get(name, f"{name}, 1e-4")][0].stages[0]
        assert recipe.stages[0].training["learning_rate"] == (same.training["learning_rate"] if name in best else 0.5)
        assert recipe.stages[0].objective == same.objective


def test_one_criterion_chooses() -> None:
    """By the mean over seeds of two columns' mean; the first of equals; rows without a setting are not chosen among."""
    plan = {"criterion": ["last layer", "≺Avg"]}
    column = criterion(plan)
    assert column == "mean of last layer and ≺Avg"
    values = {
        "RAW": [{column: 99.0}],
        "a, x, 1e-4": [{column: 50.0}, {column: 60.0}],
        "a, x, 2e-4": [{column: 56.0}, {column: 55.0}],
        "b, 1e-4": [{column: 40.0}],
        "b, 2e-4": [{column: 40.0}],
    }
    assert chosen(values, plan) == {"a, x": "a, x, 2e-4", "b": "b, 1e-4"}
