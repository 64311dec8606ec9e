"""The plans of LBR's tables: every row is a recipe that can be trained, and every table has all its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from embrew import assembly
from embrew.recipe import Recipe

PLANS = Path(__file__).parents[2] / "benchmarks" / "plans"
ROWS = {"lbr": 10, "lbr-400": 5, "lbr-attention": 4, "lbr-code": 5, "lbr-ratio": 6}


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
            assembly.check_stage(recipe.model_copy(update={"stages": trained}), index)


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


def test_the_memory_is_judged_beside_its_controls():
    """The recipe as it is, in float32; three seeds of each row; claims name rows after a stage, and known scores."""
    plan, rows = plan_of("lbr-400"), recipes("lbr-400")
    assert [stage.training["max_steps"] for stage in rows["IB-GL + CL"].stages] == [400, 60]
    assert not any(stage.training.get("bf16") for recipe in rows.values() for stage in recipe.stages)
    assert plan["dtype"] == "float32"
    seeds = {name: [seed for row in plan["rows"] if row["row"] == name for seed in row["seeds"]] for name in rows}
    assert seeds.pop("LLM") == [42]  # untrained
    assert set(map(tuple, seeds.values())) == {(42, 43, 44)}
    names = {f"{row['row']}: {stage}" for row in plan["rows"] for stage in row.get("stages", ["learn", "represent"])}
    known = {"medquad_retrieval", *(f"medquad_generation: {score}" for score in plan["also"]["medquad_generation"])}
    for claim in plan["claims"]:
        assert {claim["better"], claim["than"]} <= names
        assert {claim["task"], claim.get("than_task", claim["task"])} <= known
