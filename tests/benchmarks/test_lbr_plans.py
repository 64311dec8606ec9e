"""The plans of LBR's tables: every row is a recipe that can be trained, and every table has all its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from embrew import build
from embrew.recipe import Recipe

PLANS = Path(__file__).parents[2] / "benchmarks" / "plans"
ROWS = {"lbr": 10, "lbr-attention": 4, "lbr-code": 5, "lbr-ratio": 6}


def plan_of(name):
    return yaml.safe_load((PLANS / f"{name}.yaml").read_text())


def recipes(name):
    plan = plan_of(name)
    return {row["row"]: Recipe.load(row["recipe"], plan.get("set", []) + row.get("set", [])) for row in plan["rows"]}


@pytest.mark.parametrize("name", ROWS)
def test_every_row_can_be_trained(name):
    found = recipes(name)
    assert len(found) == ROWS[name]
    for row in plan_of(name)["rows"]:
        recipe = found[row["row"]]
        trained = [stage for stage in recipe.stages if stage.name in row.get("stages", [stage.name])]
        for index in range(len(trained)):
            build.check_stage(recipe.model_copy(update={"stages": trained}), index)


def test_ratios_differ_in_their_bank_alone():
    """The bank is what the longest text asks for, and every row trains on the same texts for as many steps."""
    rows = recipes("lbr-ratio")
    for name, recipe in rows.items():
        longest, ratio = recipe.encoder.max_length.document, recipe.encoder.memory_ratio
        assert name == f"R = {ratio or 400:g}"
        assert recipe.encoder.memory_tokens == -(-longest // (ratio or 400))
    assert len({str(recipe.stages[0]) for recipe in rows.values()}) == 1


def test_rows_share_what_they_have_in_common():
    """The first stages of the attention plan are those of the main one, so that they are trained once."""
    rows, attention = recipes("lbr"), recipes("lbr-attention")
    for first, others in (("IB-GL + CL", "IB-GL"), ("GL + CL", "GL")):
        causal, both_ways = attention[f"{others}, causal"], attention[f"{others}, bidirectional"]
        assert rows[first].stage_hash(0) == causal.stage_hash(0) == both_ways.stage_hash(0)
        assert rows[first].stage_hash(1) == causal.stage_hash(1) != both_ways.stage_hash(1)
    assert rows["GL + CL"].encoder.template == "{instruction}{text}\n" == rows["LLM"].encoder.template
