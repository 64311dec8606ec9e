"""EPIC's plan of instructions and demonstrations: rows can be trained, and claims name rows of the table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from embrew import assembly
from embrew.recipe import Recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
PLANS = Path(__file__).parents[2] / "benchmarks" / "plans"
PLAN = yaml.safe_load((PLANS / "epic-instructions.yaml").read_text())
SUITE = yaml.safe_load((PLANS / "suites" / "asked.yaml").read_text())


def recipes() -> dict[str, Recipe]:
    return {row["row"]: Recipe.load(row["recipe"], row.get("set", [])) for row in PLAN["rows"]}


def test_wordings_differ_and_data_do_not() -> None:
    found = recipes()
    own = {Path(str(one.path)).name: one for one in found["EPIC"].stages[0].datasets}
    some = {Path(str(one.path)).name: one for one in found["EPIC, 15 wordings"].stages[0].datasets}
    assert list(own) == list(some) and len(own) == 5
    for name, one in some.items():
        assert one.instructions is not None and len(set(one.instructions)) == 15
        assert one.instructions[0] == own[name].instruction
        assert one.model_copy(update={"instructions": None, "instruction": own[name].instruction}) == own[name]
    wordings = [text for one in some.values() for text in one.instructions or []]
    assert len(set(wordings)) == 75
    untrained = {f"{text}: " for text in PLAN["instructions"]["untrained"].values()}
    assert not untrained & set(wordings)
    trained = {f"{text}: " for text in PLAN["instructions"]["trained"].values()}
    assert trained <= {one.instruction for one in own.values()}
    for recipe in found.values():
        assembly.check_stage(recipe, 0)


def test_claims_name_rows_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    import evidence

    labels = set()
    for row in PLAN["rows"]:
        for _, count, condition, asked in evidence.ways(row):
            labels.add(f"{row['row']}, {count} shots{'' if condition == 'right' else f', {condition}'}, {asked}")
    assert len(labels) == 3 * 8 + 2 * 2
    for claim in PLAN["claims"]:
        assert {claim["better"], claim["than"]} <= labels, claim
    tasks = {Path(task["data"]).name: task["instruction"] for task in SUITE["tasks"]}
    assert PLAN["instructions"]["trained"] == tasks
    assert PLAN["instructions"]["untrained"].keys() == tasks.keys()
    by_hand: Any = {"asked": ["x"], "shots": [0, 5], "demonstrations": ["right", "foreign"]}
    assert list(evidence.ways(by_hand)) == [
        ("all", 0, "right", "x"),
        ("all", 5, "right", "x"),
        ("all", 5, "foreign", "x"),
    ]
    assert list(evidence.ways({})) == [("all", None, "right", None)]


def test_the_table_of_all_methods_has_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """9,600 texts a row: three of a triplet, two of a pair, one of a paragraph; six rows with three seeds."""
    monkeypatch.setenv("MINILM", "nano")  # only settings are read
    plan = yaml.safe_load((PLANS / "methods.yaml").read_text())
    single = {"mntp", "llama2vec"}
    seeds: dict[str, list[int]] = {}
    for row in plan["rows"]:
        recipe = Recipe.load(row["recipe"], row["set"])
        kept = [stage for stage in recipe.stages if stage.name in row.get("stages", [stage.name])]
        recipe = recipe.model_copy(update={"stages": kept})
        seen = 0
        for index, stage in enumerate(kept):
            assembly.check_stage(recipe, index)
            objective = stage.objective
            each = stage.batch.size if stage.batch else stage.training["per_device_train_batch_size"]
            texts = 1 if objective["type"] in single or objective.get("positives") == "dropout" else 3
            if objective["type"] == "compression":
                texts = 2 if objective.get("rows") == "pairs" else 1
            if objective["type"] == "bottleneck":
                texts = 2
            seen += stage.training["max_steps"] * each * texts
        assert seen == (9600 if kept else 0), row["row"]
        assert recipe.encoder.max_length.query == recipe.encoder.max_length.document == 128
        seeds.setdefault(row["row"], []).extend(row.get("seeds", []) if kept else [])
    assert sorted(name for name, several in seeds.items() if several == [1, 2, 3]) == sorted(
        ["LLM2Comp", "LBR", "EPIC", "AutoRegEmbed", "ESE", "SimCSE"]
    )
