"""Learning curves: scored at chosen samples, without choosing, without changing what is trained, and resumable."""

from __future__ import annotations

from typing import Any

import pytest

from embrew.recipe import Recipe
from embrew.training.stage_evaluation import evaluation_steps
from tests.training.test_stage_evaluation import Scripted, log_of
from tests.training.test_stages import equal, values
from tests.training.unverified import train

__all__ = ["values"]  # the fixture


def recipe_of(values: dict[str, Any], evaluation: dict[str, Any] | None, *, stages: tuple[int, ...] = (2,)) -> Recipe:
    """Ten steps of four rows, of 25, in each stage."""
    chosen = [{**values["stages"][i], "training": {**values["stages"][i]["training"]}} for i in stages]
    for stage in chosen:
        stage["training"] |= {"max_steps": 10, "save_steps": 3}
        stage["adapter"] = "continue"
    return Recipe.from_values({**values, "stages": chosen, "evaluation": evaluation})


def steps_of(log: dict[str, Any], stage: str = "supervised") -> list[int]:
    return [point["step"] for point in log["curves"][stage]]


@pytest.mark.parametrize(
    ("at", "last", "a_step", "wanted"),
    [
        ("log", 1, 8, [1]),
        ("log", 8, 8, [1, 2, 4, 8]),
        ("log", 9, 8, [1, 2, 4, 8, 9]),
        ([1, 8, 9, 16], 100, 8, [1, 2, 100]),  # 1 and 8 rows are seen after one step of 8
        ([10_000], 5, 8, [5]),
    ],
)
def test_which_steps(at, last, a_step, wanted):
    assert evaluation_steps(at, last=last, per_step=a_step) == wanted


@pytest.mark.parametrize(
    ("at", "wanted"), [("log", [1, 2, 4, 8, 10]), pytest.param([10, 30], [3, 8, 10], marks=pytest.mark.slow)]
)
def test_a_curve_changes_nothing(at, wanted, values, tmp_path):
    plain = recipe_of(values, None)
    watched = recipe_of(values, {"dev": ["unused"], "at": at})
    assert plain.stage_hash(0) == watched.stage_hash(0)
    train(plain, tmp_path / "plain")
    evaluate = Scripted([0.1, 0.9, 0.2, 0.3, 0.4, 0.5])
    train(watched, tmp_path / "curve", evaluate=evaluate)
    log = log_of(tmp_path / "curve")
    assert steps_of(log) == wanted
    assert "kept" not in log
    assert len(evaluate.weights) == 1 + len(wanted)  # the base, and the end once
    assert log["scores"]["supervised"] == log["curves"]["supervised"][-1]["scores"]  # of the last step, not of the best
    assert log["samples"] == {"supervised": {"a_step": 4, "an_epoch": 25, "steps": 10}}
    equal(tmp_path / "plain" / "supervised", tmp_path / "curve" / "supervised")


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"at": "log", "every": 2}, "every keeps the best step, at keeps the last; give one of them"),
        ({"at": "log", "patience": 2}, "give every as well"),
        ({"at": "log", "metric": "STSB"}, "give every as well"),
        ({"at": "linear"}, "evaluation.at"),
        ({"at": []}, "evaluation.at"),
        ({"at": [0]}, "evaluation.at"),
    ],
)
def test_what_does_not_go_together(evaluation, words, values):
    with pytest.raises(ValueError, match=words):
        recipe_of(values, {"dev": ["unused"], **evaluation})
