"""Merged encoders: the same vectors from full weights alone."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.merging import merge_encoder
from embrew.settings.encoder import Pooling
from tests.conftest import SENTENCES, by_default, stir


def trained(folder, out, *, adapters=2, embeddings=False):
    """An encoder with a merged and a carried adapter (or one), as two stages leave it."""
    encoder = Encoder.from_pretrained(
        folder, memory_tokens=2, template="{text}{memory}", attention="bidirectional", pooling=Pooling("mean", "memory")
    )
    for number in range(adapters):
        encoder.merge_adapter()
        encoder.backbone.add_lora({"r": 4}, train_embeddings=embeddings)
        stir(encoder.backbone, seed=number)
    encoder.save_pretrained(out)
    return encoder


@pytest.mark.parametrize(
    ("family", "embeddings"),
    by_default(
        [("llama", False), ("llama-tied", True)],
        [(family, both) for family in ("llama", "llama-tied") for both in (False, True)],
    ),
)
def test_the_same_vectors_without_adapters(family, embeddings, model_folder, tmp_path):
    encoder = trained(model_folder(family), tmp_path / "chain", adapters=1 + (not embeddings), embeddings=embeddings)
    result = CliRunner().invoke(app, ["merge", str(tmp_path / "chain"), str(tmp_path / "merged"), "--verify", "fast"])
    assert result.exit_code == 0, result.stderr
    opened = Encoder.from_pretrained(tmp_path / "merged")
    assert np.abs(opened.encode(SENTENCES) - encoder.encode(SENTENCES)).max() < 1e-5
    settings = json.loads((tmp_path / "merged" / "embrew.json").read_text())
    assert (settings["adapters"], settings["full_weights"], settings["dtype"]) == (0, True, "float32")
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert {"weights", "memory.safetensors", "README.md"} <= names and not {"adapters", "base"} & names
    assert settings["checks"]["reopened_max_difference"] < 1e-5


def test_it_proves_itself_in_a_fresh_process(model_folder, tmp_path):
    trained(model_folder("qwen3"), tmp_path / "chain")
    merge_encoder(tmp_path / "chain", tmp_path / "merged")
    assert json.loads((tmp_path / "merged" / "embrew.json").read_text())["checks"]["verify"] == "full"


def test_refused(model_folder, tmp_path):
    def said(*arguments):
        result = CliRunner().invoke(app, ["merge", *map(str, arguments)])
        assert result.exit_code == 1
        *before, error = result.stderr.splitlines()
        assert all(line.startswith("loading ") for line in before)
        return error

    trained(model_folder("llama"), tmp_path / "chain", adapters=1)
    trained(model_folder("llama"), tmp_path / "bare", adapters=0)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("precious")
    assert "nothing to merge" in said(tmp_path / "bare", tmp_path / "out")
    assert "choose another folder" in said(tmp_path / "chain", tmp_path / "there")
    assert "it is left alone" in said(tmp_path / "chain", tmp_path / "there", "--overwrite")
    assert "is the encoder itself" in said(tmp_path / "chain", tmp_path / "chain", "--overwrite")
    assert "no encoder written by embrew" in said(model_folder("llama"), tmp_path / "out")
    assert "no encoder written by embrew" in said(tmp_path / "nowhere", tmp_path / "out")
    merge_encoder(tmp_path / "chain", tmp_path / "out", verify="off")
    assert "full weights already; there is nothing to merge" in said(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "there" / "mine.txt").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare", "chain", "out", "there"]


def test_merged_weights_that_are_others_are_noticed(model_folder, tmp_path, monkeypatch):
    trained(model_folder("llama"), tmp_path / "chain", adapters=1)
    monkeypatch.setattr("embrew.model.adapters._merge_layer", lambda layer: None)
    with pytest.raises(RuntimeError, match="other vectors than the adapters"):
        merge_encoder(tmp_path / "chain", tmp_path / "out")
    assert not (tmp_path / "out").exists()
