"""A checkpoint that was made to run code when it is resumed, with a manifest that fits."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from embrew.recipe import Recipe
from embrew.training import checkpoints
from embrew.training.stages import train
from tests.conftest import SENTENCES

RECIPE = """
encoder:
  model: {model}
  pooling: {{mode: mean}}
  max_length: {{query: 32, document: 32}}
  lora: {{r: 2}}
stages:
  - name: learn
    objective: {{type: contrastive, positives: dropout, attention_dropout: 0.1}}
    data: {{path: {texts}}}
    batch: {{size: 4}}
    training: {{max_steps: 4, learning_rate: 0.01, save_steps: 2, use_cpu: true}}
"""


class Payload:
    """What runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def stopped(model_folder, tmp_path_factory) -> tuple[Path, Path]:
    """A recipe, and its run as it was stopped after the checkpoint of step 2."""
    root = tmp_path_factory.mktemp("stopped")
    (root / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES * 4))
    recipe = root / "recipe.yaml"
    recipe.write_text(RECIPE.format(model=model_folder("llama"), texts=root / "texts.jsonl"))
    seal = checkpoints.seal

    def and_stop(checkpoint: Path) -> None:
        seal(checkpoint)
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "seal", and_stop)
        with pytest.raises(Stopped):
            train(Recipe.load(recipe), root / "run")
    return recipe, root / "run"


def hostile(run: Path, target: Path, file: str, marker: Path) -> Path:
    """A copy of a stopped run whose checkpoint holds a payload; the manifest is made anew, as its author would."""
    shutil.copytree(run, target)
    (checkpoint,) = target.glob("learn.work/checkpoint-*")
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
    with pytest.raises(ValueError, match=rf"checkpoint-2: {file} holds other objects than .*Remove this checkpoint"):
        train(Recipe.load(recipe), tmp_path / "run", resume=True)
    assert not (tmp_path / "marker").exists()
