"""Checkpoints that were made to run code when they are resumed, and those whose manifest does not fit."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import TrainingArguments

from embrew.recipe import Recipe
from embrew.training import checkpoints
from embrew.training.checkpoints import files_needed
from embrew.training.stage_json import StageSettings, read_stage
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.training.one_stage import one_stage


class Payload:
    """What runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def stopped(model_folder, tmp_path_factory) -> tuple[Recipe, Path]:
    """A recipe, and its run as it was stopped after the checkpoint of step 2."""
    root = tmp_path_factory.mktemp("stopped")
    (root / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES * 4))
    recipe = one_stage(
        model_folder("llama"),
        root / "texts.jsonl",
        {"max_length": {"query": 32, "document": 32}},
        {"max_steps": 4, "learning_rate": 0.01, "save_steps": 2},
        objective={"type": "contrastive", "positives": "dropout", "attention_dropout": 0.1},
    )
    seal = checkpoints.seal

    def and_stop(checkpoint: Path) -> None:
        seal(checkpoint)
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "seal", and_stop)
        with pytest.raises(Stopped):
            train(recipe, root / "run")
    return recipe, root / "run"


def hostile(run: Path, target: Path, file: str, marker: Path) -> Path:
    """A copy of a stopped run whose checkpoint holds a payload; the manifest is made anew, as its author would."""
    shutil.copytree(run, target)
    (checkpoint,) = target.glob("one.work/checkpoint-*")
    state = torch.load(checkpoint / file, weights_only=False) if (checkpoint / file).exists() else {}
    torch.save({**state, "payload": Payload(f"touch {marker}")}, checkpoint / file)
    checkpoints.seal(checkpoint)
    return checkpoint


def test_the_payload_runs_where_objects_are_unpickled(stopped, tmp_path):
    """Without this, the tests below could pass because the payload is broken."""
    checkpoint = hostile(stopped[1], tmp_path / "run", "optimizer.pt", tmp_path / "marker")
    torch.load(checkpoint / "optimizer.pt", weights_only=False)
    assert (tmp_path / "marker").exists()


FILES = (
    "optimizer.pt",
    pytest.param("scheduler.pt", marks=pytest.mark.slow),
    pytest.param("rng_state.pth", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("file", FILES)
def test_a_payload_in_a_checkpoint_is_refused_and_not_run(stopped, tmp_path, file, monkeypatch):
    recipe, run = stopped
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # would allow it where a call does not say
    hostile(run, tmp_path / "run", file, tmp_path / "marker")
    with pytest.raises(ValueError, match=r"checkpoint-2: a file holds other objects than .*Remove this checkpoint"):
        train(recipe, tmp_path / "run", resume=True)
    assert not (tmp_path / "marker").exists()


# ---- what is not whole

NAMES = ("trainable.safetensors", "trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth")
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of no bytes


def sealed(folder: Path, step: int) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    for name in NAMES:
        (checkpoint / name).write_text(f"{name} {step}")
    checkpoints.seal(checkpoint)
    return checkpoint


@pytest.fixture
def needed(tmp_path) -> tuple[str, ...]:
    return files_needed(TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none"))


def without(name: str, manifest: str) -> str:
    return json.dumps({key: value for key, value in json.loads(manifest).items() if key != name})


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda manifest, text=text: text, id=text)
        for text in ("", "{}", "[]", "null", '"x"', "1", "{", "\x00", '{"trainable.safetensors": 1}', "[" * 100_000)
    ]
    + [pytest.param(lambda manifest, name=name: without(name, manifest), id=f"no {name}") for name in NAMES]
    + [
        pytest.param(lambda manifest, name=name: json.dumps({**json.loads(manifest), name: EMPTY}), id=f"{name!r} too")
        for name in ("../outside", "/dev/null", "missing", "", "..")
    ],
)
def test_what_is_not_whole_is_passed_over(damage, needed, tmp_path, caplog):
    """It is named, and the older one is used."""
    older, newer = sealed(tmp_path / "work", 9), sealed(tmp_path / "work", 10)
    (tmp_path / "work" / "outside").touch()
    assert checkpoints.newest(tmp_path / "work", needed) == newer
    manifest = newer / "manifest.json"
    manifest.write_text(damage(manifest.read_text()))  # type: ignore[operator]
    caplog.set_level(logging.WARNING, logger="embrew")
    assert checkpoints.newest(tmp_path / "work", needed) == older
    assert "checkpoint-10 is incomplete" in caplog.text and "checkpoint-9 " not in caplog.text


# ---- a stage is resumed in the number of processes that it was begun in


def test_another_number_of_processes_is_refused(tmp_path):
    settings, work = StageSettings(Recipe.load("baselines/nli-nano"), tmp_path), tmp_path / "one.work"
    settings.begin(work, 0, settings.of_stage(0), processes=2)
    settings.begin(work, 0, settings.of_stage(0), processes=2)
    with pytest.raises(ValueError, match="was begun in 2 processes, and is resumed in 1; resume it in 2, or remove"):
        settings.begin(work, 0, settings.of_stage(0), processes=1)


def test_a_damaged_number(tmp_path):
    (tmp_path / "stage.json").write_text(
        '{"format": 3, "hash": "a", "recipe": {}, "arithmetic": {}, "content": {}, "processes": 0}'
    )
    with pytest.raises(ValueError, match="processes is not a number of processes"):
        read_stage(tmp_path)
