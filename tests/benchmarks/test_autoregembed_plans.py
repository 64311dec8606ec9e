"""The plans of AutoRegEmbed's two by two: rows can be trained, differ in what they say, and wait for chosen rates."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from embrew import assembly
from embrew.recipe import Recipe

PLANS = Path(__file__).parents[2] / "benchmarks" / "plans"
FORMS = [f"{count}, {side}" for count, side in product(("two instructions", "one instruction"), ("both", "detached"))]


def plan_of(name: str) -> Any:
    return yaml.safe_load((PLANS / f"{name}.yaml").read_text())


def recipes(plan: Any) -> dict[str, Recipe]:
    return {row["row"]: Recipe.load(row["recipe"], row.get("set", [])) for row in plan["rows"]}


@pytest.mark.parametrize(("name", "count"), [("autoregembed-2x2", 20), ("autoregembed-hard", 14)])
def test_every_row_can_be_trained(name: str, count: int) -> None:
    plan = plan_of(name)
    found = recipes(plan)
    assert len(found) == len(plan["rows"]) == count
    for recipe in found.values():
        for index in range(len(recipe.stages)):
            assembly.check_stage(recipe, index)


def test_two_by_two() -> None:
    """Instructions and gradients are as named; compression is trained once for each number of instructions."""
    found = recipes(plan_of("autoregembed-2x2"))
    rates = {"2e-4": 2e-4, "1e-4": 1e-4, "5e-5": 5e-5, "2e-5": 2e-5}
    assert {f"{form}, {rate}" for form, rate in product(FORMS, rates)} <= set(found)
    for name, recipe in found.items():
        stage = recipe.stages[1]
        two = recipe.encoder.prompts.query != recipe.encoder.prompts.document
        assert two == name.startswith("two") and stage.objective["detach_self"] == ("detached" in name)
        assert stage.training["learning_rate"] == float(name.rpartition(" ")[2])
        assert stage.training["max_steps"] * stage.training["per_device_train_batch_size"] == 1280
    paper = Recipe.load("autoregembed/paper-llama2-7b").encoder.prompts
    assert found["two instructions, both, 2e-4"].encoder.prompts == paper
    hashes = {name.split(",")[0]: recipe.stage_hash(0) for name, recipe in found.items()}
    assert all(recipe.stage_hash(0) == hashes[name.split(",")[0]] for name, recipe in found.items())
    assert len(set(hashes.values())) == 2


def scores_of(name: str) -> dict[str, float]:
    rows = json.loads((PLANS.parent / "results" / f"{name}.json").read_text())["rows"]
    return {row: values["STSB"][0] for row, values in rows.items()}


def test_the_best_are_filled_in() -> None:
    plan = plan_of("autoregembed-2x2-sts")
    seeds: dict[str, list[int]] = {}
    for row in plan["rows"]:
        seeds.setdefault(row["row"], []).extend(row["seeds"])
    baselines = ["mean, hard negatives", "mean, in-batch", "last token, hard negatives"]
    assert seeds.pop("last token, untrained") == [1]
    assert sorted(seeds) == sorted([*FORMS, *baselines])
    assert all(several == [1, 2, 3] for several in seeds.values())
    judged = {f"{row['row']}: {name}" for row in plan["rows"] for name in row.get("judge", ["compress", "align"])}
    for claim in plan["claims"]:
        assert {claim["better"], claim["than"]} <= judged | set(baselines)
    searched, scores = recipes(plan_of("autoregembed-2x2")), scores_of("autoregembed-2x2")
    hard = scores_of("autoregembed-hard")
    for name, recipe in recipes(plan).items():
        if name.endswith("hard negatives"):
            rows = [row for row in hard if row.startswith(f"{name.partition(',')[0]}, ") and "untrained" not in row]
            assert recipe.stages[0].training["learning_rate"] == float(max(rows, key=hard.__getitem__).split(", ")[1])
        if name in FORMS:
            rows = [row for row in searched if row.startswith(name)]
            same = searched[max(rows, key=lambda row: scores[f"{row}: align"])]  # the first of equals
            assert recipe.stages[1].training["learning_rate"] == same.stages[1].training["learning_rate"]
            assert recipe.stage_hash(0) == same.stage_hash(0)
            assert recipe.stages[1].objective == same.stages[1].objective
            assert recipe.stages[1].data == same.stages[1].data
