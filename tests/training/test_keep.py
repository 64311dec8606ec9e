"""`training.keep`: the model of chosen steps beside the finished stage."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embrew.encoder import Encoder
from embrew.inspection import inspect
from embrew.recipe import Recipe, build
from embrew.training import stages
from tests import fresh
from tests.conftest import SENTENCES
from tests.training.one_stage import one_stage
from tests.training.test_stages import equal
from tests.training.unverified import train

Build = Callable[..., Recipe]


@pytest.fixture(scope="module")
def make_recipe(model_folder, tmp_path_factory) -> Build:
    """A function that returns a recipe of one stage with a constant learning rate."""
    tmp_path = tmp_path_factory.mktemp("pairs")
    pairs = [{"query": f"{i} {text[:20]}", "positive": text[20:]} for i in range(2) for text in SENTENCES]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))

    def recipe(*, encoder: dict[str, Any] | None = None, **training: Any) -> Recipe:
        settings = {"max_steps": 4, "learning_rate": 0.01, "lr_scheduler_type": "constant", "save_steps": 3, **training}
        lora = {"lora": {"r": 4, "lora_dropout": 0.1}, **(encoder or {})}
        return one_stage(model_folder("llama"), tmp_path / "pairs.jsonl", encoder=lora, training=settings)

    return recipe


@pytest.fixture(scope="module")
def whole(make_recipe, tmp_path_factory) -> Path:
    """A run that keeps the second of its four steps."""
    place = tmp_path_factory.mktemp("whole") / "run"
    train(make_recipe(keep=[2]), place, evaluate=lambda _: {"dev": 0.5})
    return place


@pytest.mark.parametrize("encoder", [None, pytest.param({"lora": None}, marks=pytest.mark.slow)], ids=["lora", "full"])
def test_the_models_of_these_steps(encoder, make_recipe, tmp_path):
    """To the bit those of runs that end there; the last one is as without `keep`."""
    kept = stages.train(make_recipe(encoder=encoder, keep=[3, 1, 3]), tmp_path / "run")
    train(make_recipe(encoder=encoder), tmp_path / "without")
    equal(tmp_path / "run" / "one", tmp_path / "without" / "one")
    for step in (1, 3):
        folder = tmp_path / "run" / f"one.step-{step}"
        train(make_recipe(encoder=encoder, max_steps=step), tmp_path / f"to-{step}")
        equal(folder, tmp_path / f"to-{step}" / "one")
        settings = json.loads((folder / "embrew.json").read_text())
        assert settings["steps"] == step and settings["checks"]["verify"] == "fast"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["one", "one.step-1", "one.step-3", "run.json"]
    assert kept.steps == 4 and "keep" in (tmp_path / "run" / "one.step-1" / "recipe.yaml").read_text()
    opened = Encoder.from_pretrained(tmp_path / "run")
    assert abs(opened.encode(SENTENCES) - kept.encode(SENTENCES)).max() < 1e-6


def test_it_is_listed_and_its_card_has_no_scores_of_another_step(whole):
    assert "one: kept one.step-2" in inspect(whole).facts
    assert inspect(whole / "one.step-2").kind == "encoder"
    last, kept = ((whole / name / "README.md").read_text() for name in ("one", "one.step-2"))
    assert "## Scores" in last and "## Scores" not in kept and "| one | contrastive | pairs.jsonl |" in kept


@pytest.mark.slow
def test_killed_after_the_step_and_resumed(make_recipe, tmp_path):
    """SIGKILL when the file of step 2 is there, before a checkpoint or after one: the same bytes as a run without."""
    (tmp_path / "recipe.yaml").write_text(make_recipe(max_steps=40, keep=[2, 5]).to_yaml())
    train(Recipe.load(tmp_path / "recipe.yaml"), tmp_path / "whole")
    command = [
        sys.executable,
        "-m",
        "embrew",
        "train",
        str(tmp_path / "recipe.yaml"),
        "--output",
        str(tmp_path / "run"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    first, ends = fresh.Fresh(command, env=environment), time.monotonic() + 120
    while not (tmp_path / "run" / "one.work" / "step-5.safetensors").exists() and time.monotonic() < ends:
        time.sleep(0.002)
    first.kill()
    assert first.wait(120) == -signal.SIGKILL
    assert not list((tmp_path / "run").glob("one.step-*"))
    train(Recipe.load(tmp_path / "recipe.yaml"), tmp_path / "run", resume=True)
    for name in ("one", "one.step-2", "one.step-5"):
        equal(tmp_path / "whole" / name, tmp_path / "run" / name)


def test_killed_while_folders_are_saved(make_recipe, whole, tmp_path, monkeypatch):
    """Between a kept folder and the stage's: the run is resumed, and both are written."""
    save = Encoder.save_pretrained

    def dies(self: Encoder, folder: Path, **how: Any) -> None:
        if folder.name == "one":
            raise KeyboardInterrupt
        save(self, folder, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "save_pretrained", dies)
        with pytest.raises(KeyboardInterrupt):
            train(make_recipe(keep=[2]), tmp_path / "run")
    assert (tmp_path / "run" / "one.step-2").is_dir() and not (tmp_path / "run" / "one").exists()
    train(make_recipe(keep=[2]), tmp_path / "run", resume=True)
    for name in ("one", "one.step-2"):
        equal(whole / name, tmp_path / "run" / name)
    with pytest.raises(ValueError, match=r"other settings \(stages\.0\.training\.keep"):
        train(make_recipe(keep=[2, 3]), tmp_path / "run", resume=True)


def test_a_stage_that_stops_early_says_what_is_not_there(make_recipe, tmp_path, caplog):
    recipe = make_recipe(keep=[1, 4])
    values = recipe.model_dump() | {"evaluation": {"dev": ["unused"], "every": 1, "patience": 1}}
    with caplog.at_level(logging.WARNING):
        train(Recipe.from_values(values), tmp_path / "run", evaluate=lambda _: {"dev": 0.5})
    assert "one  step 4 is not kept: the stage stopped before it" in caplog.text
    assert (tmp_path / "run" / "one.step-1").is_dir() and not (tmp_path / "run" / "one.step-4").exists()


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        ([2, 5], r"training.keep=\[2, 5\], but the stage has 4 steps; give steps from 1 to 4"),
        ([0], "training.keep.0=0; allowed: greater than or equal to 1"),
        ([], r"training.keep=\[\]; allowed: at least 1 item"),
        (2, "training.keep=2; allowed: a valid list"),
        ([1.5], "training.keep.0=1.5; allowed: a valid integer"),
    ],
)
def test_wrong_steps(keep, words, make_recipe):
    with pytest.raises(ValueError, match=words):
        build.check_recipe(make_recipe(keep=keep))


def test_steps_beyond_the_epochs(make_recipe, tmp_path):
    """10 rows in batches of 4 are 2 steps; it is said before the first."""
    with pytest.raises(ValueError, match=r"training.keep=\[3\], but the stage has 2 steps"):
        train(make_recipe(max_steps=-1, num_train_epochs=1, keep=[3]), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one.work", "folders that end like this belong to other stages"),
        ("one.step-4", "folders that end like this belong to other stages"),
        ("one.tensorboard", "folders that end like this belong to other stages"),
        ("run.json", "'run.json' is a file of the run's folder; choose another name"),
        ("Run.JSON", "'Run.JSON' is a file of the run's folder; choose another name"),
        ("x" * 300, "names a folder and has 300 characters; allowed: 200"),
    ],
)
def test_a_stage_cannot_be_called_like_another_file(name, message, make_recipe):
    values = make_recipe().model_dump()
    values["stages"][0]["name"] = name
    with pytest.raises(ValueError, match=message):
        Recipe.from_values(values)
