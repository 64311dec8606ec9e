"""Evaluation within a stage: the best step is saved, patience ends it, and stopping in between costs nothing."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from embrew.encoder import Encoder
from embrew.model import prefix
from embrew.recipe import Recipe
from embrew.training.stage_evaluation import (
    Evaluate,
)
from embrew.training.trainer import StageTrainer
from tests.conftest import SENTENCES, by_default
from tests.training.test_stages import equal, values
from tests.training.unverified import train

__all__ = ["values"]  # the fixture


def watched(values: dict[str, Any], **evaluation: Any) -> Recipe:
    """The supervised stage alone, ten steps, evaluated every two."""
    stage = {**values["stages"][2], "adapter": "continue"}
    stage["training"] = {**stage["training"], "max_steps": 10, "save_steps": 3}
    settings = {"dev": ["unused"], "every": 2, **evaluation}
    return Recipe.from_values({**values, "stages": [stage], "evaluation": settings})


class Scripted:
    """Gives the scores of a script, one after another, and keeps the weights that each was asked for."""

    def __init__(self, dev: Iterable[float], guard: Iterable[float] = ()) -> None:
        self.dev, self.guard = list(dev), list(guard)
        self.weights: list[dict[str, torch.Tensor]] = []

    def __call__(self, encoder: Encoder) -> dict[str, float]:
        encoder.encode(SENTENCES)  # what an evaluation does to an encoder that is being trained
        call = len(self.weights)
        self.weights.append({name: p.detach().clone() for name, p in encoder.named_parameters() if p.requires_grad})
        scores = {"dev": self.dev[call], "STSB": self.dev[call]}
        return scores | ({"guard": self.guard[call], "guard/NEWS": self.guard[call]} if self.guard else {})


def fingerprint(encoder: Encoder) -> dict[str, float]:
    """A score that any other bit of any vector changes."""
    digest = hashlib.sha256(encoder.encode(SENTENCES).tobytes()).digest()
    return {"dev": int.from_bytes(digest[:4], "big") / 2**32}


def log_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def are_saved(several: list[dict[str, torch.Tensor]], folder: Path) -> list[bool]:
    """Which of these are the weights in an encoder's folder."""
    opened = dict(Encoder.from_pretrained(folder, merge_adapter=False).named_parameters())
    with torch.no_grad():
        return [all(torch.equal(weight, opened[name]) for name, weight in weights.items()) for weights in several]


def is_saved(weights: dict[str, torch.Tensor], folder: Path) -> bool:
    return are_saved([weights], folder) == [True]


def test_the_best_step_is_saved_and_not_the_last(values, tmp_path):
    scripted = Scripted([0.5, 0.6, 0.9, 0.7, 0.9, 0.8])
    encoder = train(watched(values), tmp_path / "run", evaluate=scripted)
    log = log_of(tmp_path / "run")
    assert [(point["step"], point["scores"]["dev"]) for point in log["curves"]["supervised"]] == [
        (2, 0.6), (4, 0.9), (6, 0.7), (8, 0.9), (10, 0.8),
    ]  # fmt: skip
    assert log["kept"] == {"supervised": 4}, "of two that are equal, the first"
    assert log["scores"] == {name: {"dev": s, "STSB": s} for name, s in (("base", 0.5), ("supervised", 0.9))}
    assert encoder.steps == Encoder.from_pretrained(tmp_path / "run").steps == 4
    assert len(scripted.weights) == 6, "the stage's own score is not asked for again"
    assert are_saved(scripted.weights, tmp_path / "run" / "supervised") == [
        False, False, True, False, False, False,
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["run.json", "supervised"]
    plain = watched(values, every=None)
    train(plain, tmp_path / "plain")
    assert is_saved(scripted.weights[-1], tmp_path / "plain" / "supervised"), "looking does not disturb the training"


def test_patience(values, tmp_path, caplog):
    """Two evaluations without a better score end the stage, though the next one would have been the best."""
    scripted = Scripted([0.5, 0.6, 0.9, 0.7, 0.8, 0.95])
    with caplog.at_level(logging.INFO, logger="embrew"):
        train(watched(values, patience=2, metric="STSB"), tmp_path / "run", evaluate=scripted)
    assert [point["step"] for point in log_of(tmp_path / "run")["curves"]["supervised"]] == [2, 4, 6, 8]
    assert is_saved(scripted.weights[2], tmp_path / "run" / "supervised")
    assert "supervised  stopped: 2 evaluations without a better STSB" in caplog.messages
    assert "supervised  kept step 4, the best of 4 evaluations by STSB" in caplog.messages


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> Path:
    """Where the run is that several tests compare with, once it is made."""
    return tmp_path_factory.mktemp("once") / "whole"


@pytest.fixture
def whole(once, values) -> Path:
    """The stage, scored by `fingerprint`, without a stop."""
    if not once.exists():
        train(watched(values), once, evaluate=fingerprint)
    return once


class Stop(BaseException):
    """The power goes off."""


def stopped(recipe: Recipe, folder: Path, at: str | int, scores: Evaluate = fingerprint) -> None:
    """Train until a step's beginning, an evaluation's end, or the writing of the stage."""
    step, score, steps = StageTrainer.training_step, StageTrainer.evaluate, 0

    def training_step(self: StageTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == at:
            raise Stop
        return step(self, *args, **kwargs)

    def evaluate(self: StageTrainer, *args: Any, **kwargs: Any) -> dict[str, float]:
        found = score(self, *args, **kwargs)
        if at == f"evaluation {self.state.global_step}":
            raise Stop
        return found

    def save(*_: Any, **__: Any) -> None:
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageTrainer, "training_step", training_step)
        patch.setattr(StageTrainer, "evaluate", evaluate)
        if at == "saving":
            patch.setattr(Encoder, "save_pretrained", save)
        with pytest.raises(Stop):
            train(recipe, folder, evaluate=scores)


def slow(*values: str | int) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("at", ["evaluation 6", *slow(5, 10, "saving")])
def test_stopped_and_resumed_is_never_stopped(at, values, whole, tmp_path):
    """Curve, best step and weights are those of a run that nothing stopped, to the bit."""
    recipe = watched(values)
    stopped(recipe, tmp_path / "halves", at)
    train(recipe, tmp_path / "halves", evaluate=fingerprint, resume=True)
    log, halves = log_of(whole), log_of(tmp_path / "halves")
    for key in ("curves", "kept", "scores"):
        assert log[key] == halves[key], key
    scores = [point["scores"]["dev"] for point in log["curves"]["supervised"]]
    assert len(set(scores)) == 5 and log["kept"]["supervised"] == 2 + 2 * scores.index(max(scores))
    equal(whole / "supervised", tmp_path / "halves" / "supervised")


def test_a_later_best_is_forgotten_with_the_steps_that_led_to_it(values, tmp_path):
    """Where a repeated step scores otherwise (a GPU may), weights and curve still belong together."""
    first = Scripted([0.5, 0.6, 0.9])
    with pytest.raises(IndexError):  # ends without a word at step 6; the newest checkpoint is at step 3
        train(watched(values), tmp_path / "run", evaluate=first)
    second = Scripted([0.4, 0.4, 0.4, 0.4])
    train(watched(values), tmp_path / "run", evaluate=second, resume=True)
    log = log_of(tmp_path / "run")
    assert [point["scores"]["dev"] for point in log["curves"]["supervised"]] == [0.6, 0.4, 0.4, 0.4, 0.4]
    assert log["kept"] == {"supervised": 2}
    assert is_saved(first.weights[1], tmp_path / "run" / "supervised")


def test_a_guard_set_that_drops_is_named(values, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="embrew"):
        train(
            watched(values, every=5), tmp_path / "run",
            evaluate=Scripted([0.5, 0.4, 0.7], guard=[0.8, 0.8, 0.75]),
        )  # fmt: skip
    said = [line for line in caplog.messages if "dev 0" in line]
    assert said == [
        "base  dev 0.500  guard 0.800",
        "supervised  step 5/10  dev 0.400 (base 0.500)  guard 0.800 (base 0.800)  got worse: dev 0.500 → 0.400"
        "  best so far",
        "supervised  step 10/10  dev 0.700 (base 0.500)  guard 0.750 (base 0.800)  got worse: NEWS 0.800 → 0.750"
        "  best so far",
        "supervised  dev 0.700 (base 0.500)  guard 0.750 (base 0.800)  got worse: NEWS 0.800 → 0.750",
    ]


def test_a_metric_that_is_no_score(values, tmp_path):
    with pytest.raises(ValueError, match=r"evaluation.metric='stsb' is not a score; choose from dev, STSB$"):
        train(watched(values, metric="stsb"), tmp_path / "run", evaluate=Scripted([0.5], guard=[0.5]))
    assert not (tmp_path / "run" / "supervised").exists()
    with pytest.raises(ValueError, match="train was called without evaluate="):
        train(watched(values), tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_what_chooses_the_weights_is_in_the_hash(values):
    def hash_of(**evaluation: Any) -> str:
        return watched(values, **evaluation).stage_hash(0)

    plain = Recipe.from_values({**watched(values).resolved(), "evaluation": None}).stage_hash(0)
    assert hash_of(every=None) == plain and hash_of(every=None, guard=["x"]) == plain
    chosen = hash_of()
    assert hash_of(guard=["x"]) == hash_of(batch_tokens=7) == hash_of(stages=["supervised"]) == chosen
    others = [hash_of(every=3), hash_of(metric="x"), hash_of(patience=1), hash_of(dev=["x"])]
    assert len({plain, chosen, *others}) == 6
    both: Callable[[Any], Recipe] = lambda stages: Recipe.from_values(  # noqa: E731
        {**values, "evaluation": {"dev": ["x"], "every": 2, "stages": stages}}
    )
    assert both(["supervised"]).stage_hash(0) == both(["unsupervised"]).stage_hash(0), "the first is not watched"
    assert both(["supervised"]).stage_hash(1) != both(["unsupervised"]).stage_hash(1)
    assert both(None).differing_keys(both(["supervised"]).resolved(0), 0) == ["evaluation"]


PROMPT = "Read this text with care, and say in a single word what it means. "


def honest(encoder: Encoder) -> dict[str, float]:
    """A score of vectors whose prompt is computed together with each text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "WORTHWHILE", 10**9)
        return cosines(encoder)


def cosines(encoder: Encoder) -> dict[str, float]:
    vectors = encoder.encode(SENTENCES)
    return {"dev": float((vectors @ vectors.T).mean())}


@pytest.mark.parametrize("case", by_default(["bf16"], ["bf16", "all weights", "accumulated"]))
def test_what_is_reported_is_what_is_reopened(case, values, tmp_path):
    """Texts that share a long prompt, and the Trainer's own optimiser: each score is one of the weights of its step."""
    values["encoder"] |= {"attention": "causal", "template": PROMPT + "{instruction}{text}{memory}"}
    if case == "all weights":
        values["encoder"]["lora"] = None
    values["stages"][2]["training"] |= {"bf16": case == "bf16"}
    if case == "accumulated":
        values["stages"][2]["batch"] = None
        values["stages"][2]["training"] |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    recipe = watched(values)
    pairs = []

    def evaluate(encoder: Encoder) -> dict[str, float]:
        pairs.append((cosines(encoder)["dev"], honest(encoder)["dev"]))
        return {"dev": pairs[-1][0]}

    train(recipe, tmp_path / "run", evaluate=evaluate)
    log = log_of(tmp_path / "run")
    kept = next(p for p in log["curves"]["supervised"] if p["step"] == log["kept"]["supervised"])["scores"]["dev"]
    reopened = cosines(Encoder.from_pretrained(tmp_path / "run"))["dev"]
    rounding = 1e-3 if case == "bf16" else 1e-6  # scores within such a stage are computed in bfloat16 too
    assert kept == pytest.approx(reopened, abs=rounding), f"reported {kept:.4f}, reopened {reopened:.4f}"
    assert len({said for said, _ in pairs}) == len(pairs) == 6, "each evaluation sees other weights"
    assert [said for said, _ in pairs] == pytest.approx([found for _, found in pairs], abs=rounding)
