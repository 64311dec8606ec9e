"""`--backend openvino`: vectors on disk of either backend, and which models may query them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.storage.base_model import supports_natively

pytest.importorskip("openvino")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def folder(model_folder, tmp_path) -> Path:
    """Of a model without gated layers, which one thread computes in bfloat16, too."""
    encoder = Encoder.from_pretrained(model_folder("phi"), memory_tokens=2, template="{text}{memory}", max_length=32)
    encoder.save_pretrained(tmp_path / "encoder", verify="off")
    return tmp_path / "encoder"


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"_id": f"d{i}", "text": f"text {i} of {i * i}"}) + "\n" for i in range(6)))
    return path


@pytest.mark.slow
def test_float32_vectors_of_one_backend_are_searched_with_the_other(folder, corpus, tmp_path):
    done = run("encode", folder, corpus, tmp_path / "vectors", "--backend", "openvino", "-q")
    assert done.exit_code == 0, done.stderr
    manifest = json.loads((tmp_path / "vectors" / "__embrew__" / "vectors.json").read_text())
    assert manifest["made_of"]["dtype"] == "float32"
    found = run("search", folder, "--index", tmp_path / "vectors", "-k", 1, "text 4 of 16", "--json")
    assert found.exit_code == 0, found.stderr
    hit = json.loads(found.stdout)["questions"][0]["hits"][0]
    assert hit["id"] == "d4" and hit["score"] > 0.9999


@pytest.mark.slow
@pytest.mark.skipif(not supports_natively(torch.bfloat16, torch.device("cpu")), reason="this CPU emulates bfloat16")
def test_bfloat16_vectors_are_searched_with_bfloat16_only(folder, corpus, tmp_path):
    on_openvino = ("--backend", "openvino", "--dtype", "bfloat16")
    assert run("encode", folder, corpus, tmp_path / "vectors", *on_openvino, "-q").exit_code == 0
    for others in ((), ("--backend", "openvino")):
        refused = run("search", folder, "--index", tmp_path / "vectors", "text 4 of 16", *others)
        assert refused.exit_code == 1 and "encoded in bfloat16, opened in float32" in " ".join(refused.stderr.split())
    found = run("search", folder, "--index", tmp_path / "vectors", "-k", 1, "text 4 of 16", "--json", *on_openvino)
    assert json.loads(found.stdout)["questions"][0]["hits"][0]["id"] == "d4"
