"""Models of a training run: the untrained base of one that began with a local folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew.encoder import Encoder
from embrew.recipe import Recipe
from embrew.report.sources import read_sources
from embrew.training.stages import train
from tests.conftest import SENTENCES

LEFT_OUT = "the untrained base is left out, since the folder of mine is not known or has changed"


@pytest.fixture
def base(model_folder, tmp_path, monkeypatch) -> Path:
    """The user's own model, and rows to train it on, in the working directory."""
    rows = [{"anchor": text, "positive": text} for text in SENTENCES]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(model_folder("llama"), tmp_path / "mine")


def trained(model: object, **settings: Any) -> Path:
    """Return a run of one step on a model."""
    encoder = {"model": str(model), "pooling": {"mode": "mean"}, **settings}
    stage = {
        "name": "only",
        "objective": {"type": "contrastive", "positives": "column"},
        "data": {"path": "pairs.jsonl"},
        "batch": {"size": 2},
        "training": {"max_steps": 1, "use_cpu": True, "report_to": "none"},
    }
    train(Recipe.from_values({"encoder": encoder, "stages": [stage]}), Path("run"), verify="off")
    return Path("run")


def names() -> list[str]:
    return list(read_sources(["run"]))


@pytest.mark.parametrize(
    ("path", "lora"), [("absolute", {"r": 2}), ("mine", None)], ids=["kept in the stage", "relative"]
)
def test_the_untrained_base_is_a_local_folder(path, lora, base, caplog):
    """Where the stage keeps no base, as of all weights, a base that has changed is left out."""
    trained(base if path == "absolute" else path, lora=lora)
    assert names() == ["run/untrained", "run/only"]
    opened = read_sources(["run"])["run/untrained"][0].open()
    expected = Encoder.from_pretrained(base, pooling="mean")
    np.testing.assert_array_equal(opened.encode(SENTENCES), expected.encode(SENTENCES))
    assert opened.base == expected.base
    with (base / "model.safetensors").open("ab") as file:
        file.write(b"other")
    assert names() == (["run/untrained", "run/only"] if lora else ["run/only"])
    assert (LEFT_OUT in caplog.text) == (lora is None)


def test_a_base_that_is_not_known_is_left_out_and_named(base, caplog):
    trained(base)  # all weights: the stage keeps no base, and the run names it without its place
    assert names() == ["run/only"]
    assert LEFT_OUT in caplog.text
