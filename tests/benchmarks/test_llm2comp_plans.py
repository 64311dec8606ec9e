"""The plans of LLM2Comp's first stage: every row can be trained, and rows differ in what their names say."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from embrew import assembly
from embrew.recipe import Recipe

PLANS = Path(__file__).parents[2] / "benchmarks" / "plans"


def rows(name: str) -> dict[str, tuple[dict[str, Any], Recipe]]:
    plan = yaml.safe_load((PLANS / f"{name}.yaml").read_text())
    found = {row["row"]: (row, Recipe.load(row["recipe"], plan["set"] + row.get("set", []))) for row in plan["rows"]}
    assert len(found) == len(plan["rows"])
    return found


@pytest.mark.parametrize(("name", "count"), [("llm2comp-targets", 12), ("llm2comp-rates", 12)])
def test_every_row_can_be_trained(name: str, count: int) -> None:
    found = rows(name)
    assert len(found) == count
    for row, recipe in found.values():
        assert row["stages"] == ["compress"]
        assembly.check_stage(recipe.model_copy(update={"stages": recipe.stages[:1]}), 0)
    assert len({recipe.stage_hash(0) for _, recipe in found.values()}) == count


def test_targets_by_losses() -> None:
    found = {name: recipe.stages[0] for name, (_, recipe) in rows("llm2comp-targets").items()}
    assert all(row["seeds"] == [1, 2, 3] for row, _ in rows("llm2comp-targets").values())
    for loss, target in product(("KL", "NLL"), ("continuation", "same", "both")):
        objective: Any = assembly.objective(found[f"{loss}, {target}"].objective)
        assert objective.divergence == loss.lower() and objective.held_out == 64
        assert [*objective.targets] == (["continuation", "same"] if target == "both" else [target])
    assert len({str(stage.training) + str(stage.data) for stage in found.values()}) == 1


def test_rates_by_steps() -> None:
    found = {name: recipe.stages[0] for name, (_, recipe) in rows("llm2comp-rates").items()}
    for name, (steps, rate) in product(("distillation", "reconstruction"), product((300, 1200), (3e-4, 1e-3, 3e-3))):
        shown = f"{rate:.1e}".replace("e-0", "e-")
        stage = found[f"{name}, {steps} steps, {shown}"]
        assert stage.training["learning_rate"] == rate
        assert (stage.training["max_steps"], stage.training["warmup_steps"]) == (steps, steps // 10)
        objective: Any = assembly.objective(stage.objective)
        assert objective.divergence == ("kl" if name == "distillation" else "nll")
        assert [*objective.targets] == ["continuation" if name == "distillation" else "same"]
