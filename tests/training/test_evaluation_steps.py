"""Learning curves: scored at chosen samples, without choosing, without changing what is trained, and resumable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embrew.recipe import Recipe
from embrew.training.stage_evaluation import evaluation_steps
from embrew.training.trainer import StageTrainer
from tests.training.test_stage_evaluation import Scripted, fingerprint, log_of
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
def test_which_steps(at: Any, last: int, a_step: int, wanted: list[int]) -> None:
    assert evaluation_steps(at, last=last, per_step=a_step) == wanted


@pytest.mark.parametrize(
    ("at", "wanted"), [("log", [1, 2, 4, 8, 10]), pytest.param([10, 30], [3, 8, 10], marks=pytest.mark.slow)]
)
def test_a_curve_changes_nothing(at: Any, wanted: list[int], values: dict[str, Any], tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_only_the_stages_that_are_named(values: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_of(values, {"dev": ["unused"], "at": "log", "stages": ["supervised"]}, stages=(1, 2))
    train(recipe, tmp_path / "run", evaluate=Scripted([0.1] * 9))
    log = log_of(tmp_path / "run")
    assert list(log["curves"]) == ["supervised"]
    assert list(log["samples"]) == ["unsupervised", "supervised"]


@pytest.mark.slow
def test_stopped_and_resumed_has_the_same_curve(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(values, {"dev": ["unused"], "at": "log"})
    train(recipe, tmp_path / "whole", evaluate=fingerprint)
    original: Callable[..., None] = StageTrainer._save_checkpoint

    def stop(self: Any, *args: Any) -> None:
        original(self, *args)
        if self.state.global_step == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(StageTrainer, "_save_checkpoint", stop)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "halves", evaluate=fingerprint)
    monkeypatch.setattr(StageTrainer, "_save_checkpoint", original)
    train(recipe, tmp_path / "halves", evaluate=fingerprint, resume=True)
    whole, halves = log_of(tmp_path / "whole"), log_of(tmp_path / "halves")
    assert steps_of(whole) == [1, 2, 4, 8, 10]
    assert len({json.dumps(point["scores"]) for point in whole["curves"]["supervised"]}) == 5
    for key in ("curves", "scores", "samples"):
        assert whole[key] == halves[key]
    equal(tmp_path / "whole" / "supervised", tmp_path / "halves" / "supervised")


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
def test_what_does_not_go_together(evaluation: dict[str, Any], words: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=words):
        recipe_of(values, {"dev": ["unused"], **evaluation})


def test_nothing_to_evaluate_by(values: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the recipe has evaluation.at=log, but train was called without evaluate="):
        train(recipe_of(values, {"dev": ["unused"], "at": "log"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
