"""A claim of a plan names rows that the plan's table will have; else nothing is trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from evidence import check_claims, names_of
from result_plans import planned

PLANS = Path(__file__).parents[2] / "benchmarks" / "plans"
CLAIMING = [
    path for path in sorted(PLANS.glob("*.yaml")) if {"claims", "suite"} <= set(yaml.safe_load(path.read_text()))
]


@pytest.fixture
def placed(monkeypatch):
    for name in ("WORLD", "MINILM", "EMBREW_DATA", "LLM2COMP", "ESE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.chdir(PLANS.parents[1])


def plan_of(path):
    plan = yaml.safe_load(path.read_text())
    for entry in plan["rows"]:  # rates that are chosen later
        entry["set"] = [setting for setting in entry.get("set", []) if "null" not in setting]
    return plan


@pytest.mark.parametrize("path", CLAIMING, ids=lambda path: path.stem)
def test_claims_name_rows_of_their_plan(path, placed):
    check_claims(plan_of(path))


@pytest.mark.parametrize("path", CLAIMING, ids=lambda path: path.stem)
def test_pages_expect_the_rows_that_a_plan_will_write(path, placed):
    assert planned(path.stem) == names_of(plan_of(path))


def test_entries_of_a_row_have_the_same_settings(placed):
    rows = [
        {"row": "A", "recipe": "baselines/mean", "seeds": [1]},
        {"row": "A", "recipe": "baselines/echo", "seeds": [2]},
    ]
    with pytest.raises(SystemExit, match="the entries of row 'A' have different settings"):
        names_of({"rows": rows})


def plan_with(better):
    rows = [
        {"row": "A", "recipe": "llm2comp/nano-wiki", "stages": ["compress"], "tokens": ["all", "one"]},
        {"row": "B", "recipe": "baselines/mean"},
        {"row": "C", "recipe": "llm2comp/nano-wiki", "judge": ["supervised"]},
        {"row": "D", "model": "/nowhere"},
    ]
    return {"rows": rows, "claims": [{"claim": "", "better": better, "than": 3, "task": "sts"}]}


@pytest.mark.parametrize("row", ["A: compress", "A: compress, one", "B", "C: supervised", "D"])
def test_rows_that_will_be_there(row, placed):
    check_claims(plan_with(row))


@pytest.mark.parametrize("row", ["A", "A: supervised", "C: compress", "B: untrained", "E"])
def test_rows_that_will_not_are_refused(row, placed):
    with pytest.raises(SystemExit, match=f"claims name {row}; the table will have A: compress, A: compress, one, B, "):
        check_claims(plan_with(row))
