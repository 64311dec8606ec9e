"""Int8 weights for OpenVINO: compared with the encoder when written, refused where they lose too much."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from embrew.corpus.rows import sample_texts
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.export.fresh_process import verify_runtime
from embrew.opening import open_model
from embrew.runtimes import openvino as target
from embrew.runtimes.portable import Int8
from tests.conftest import SENTENCES

pytestmark = pytest.mark.skipif(find_spec("nncf") is None, reason="install nncf to test int8 weights")
TEXTS = [*SENTENCES, "", "a", "ends with </s> and <|memory_0|>", "long " * 200]


def by_hand(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array([x @ y / np.sqrt(x @ x) / np.sqrt(y @ y) for x, y in zip(a, b, strict=True)])


def with_outliers(encoder: Encoder) -> Encoder:
    """One weight per row is a thousand times the others and gets an input of 0: int8 has one step for all others."""
    inner = encoder.backbone.inner
    with torch.no_grad():
        for layer in inner.layers:
            layer.input_layernorm.weight[0] = 0.0
            layer.post_attention_layernorm.weight[0] = 0.0
            for name in ("q_proj", "k_proj", "v_proj"):
                getattr(layer.self_attn, name).weight[:, 0] = 300.0
            for name in ("gate_proj", "up_proj"):
                getattr(layer.mlp, name).weight[:, 0] = 300.0
    return encoder


@pytest.fixture
def encoder(make_encoder) -> Encoder:
    return make_encoder(prompts={"query": "find: ", "document": ""}, max_length=64, attention="causal")


def test_weights_alone(encoder, tmp_path):
    folder = tmp_path / "export"
    scored: list[str] = []
    score = lambda model: scored.append(type(model).__name__) or {"task dev, Spearman": 0.5}  # noqa: E731
    export_encoder(encoder, folder, runtimes=["openvino"], weights="int8", int8=Int8(score=score))
    parity = json.loads((folder / "parity.json").read_text())
    noted = parity["int8"]
    opened = open_model(str(folder))
    found = by_hand(opened.encode_document(TEXTS), encoder.encode_document(TEXTS))
    assert 0.99 < found.min() < 1 - 1e-6, "rounded, and not otherwise changed"
    assert noted["mean_cosine"] >= 0.99 and noted["min_cosine"] <= noted["mean_cosine"] and noted["texts"] == 18
    assert parity["least_cosine"] <= noted["min_cosine"] and parity["runtimes"] == {"openvino": "int8"}
    assert scored == ["Encoder", "OpenVINOEncoder"] and noted["dev"] == {
        "task dev, Spearman": {"encoder": 0.5, "int8": 0.5}
    }
    card = (folder / "README.md").read_text()
    assert "## Weights in int8" in card and "| task dev, Spearman | 0.5000 | 0.5000 |" in card
    assert "DYNAMIC_QUANTIZATION_GROUP_SIZE" in (folder / "openvino" / "openvino_model.xml").read_text()
    assert opened.weights_hash() != encoder.weights_hash() and opened.describe()["weights"] == "int8"

    changed = tmp_path / "changed"  # other vectors than were measured are found
    shutil.copytree(folder, changed)
    parity["cases"][0]["texts"][0]["vector"] = parity["cases"][0]["texts"][0]["vector"][::-1]
    with pytest.raises(RuntimeError, match="OpenVINO gives other vectors"):
        verify_runtime(target.OPENVINO, changed, parity, "cpu")


@pytest.mark.slow
def test_weights_that_lose_too_much_are_refused(make_encoder, tmp_path):
    encoder = with_outliers(make_encoder(max_length=64, attention="causal"))
    with pytest.raises(RuntimeError, match=r"change the vectors too much: the mean cosine over 18 texts is 0\.\d"):
        export_encoder(encoder, tmp_path / "export", runtimes=["openvino"], weights="int8")
    assert not list(tmp_path.iterdir())


def test_wrong_combinations(encoder, tmp_path):
    message = "for openvino with int8 weights only"
    for options in ({"runtimes": ["openvino"]}, {"runtimes": ["openvino"], "weights": "bf16"}, {}):
        with pytest.raises(ValueError, match=message):
            export_encoder(encoder, tmp_path / "export", int8=Int8(), **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_cosine=1.2; give a cosine from 0 to 1"):
        Int8(min_cosine=1.2)
    assert not list(tmp_path.iterdir())


def test_calibration_texts_are_what_encode_reads(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n\n  \ntwo\none\n")
    assert sample_texts(lines, 300) == ("one", "two")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"_id": "same", "text": f"text {i}"}) + "\n" for i in range(9)))
    assert len(sample_texts(rows, 4)) == 4 and set(sample_texts(rows, 4)) < {f"text {i}" for i in range(9)}
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(ValueError, match="holds no rows"):
        sample_texts(empty, 4)
    empty.write_text("\n  \n")
    with pytest.raises(ValueError, match="no text that is not blank|empty|blank"):
        sample_texts(empty, 4)
    rows.write_text(json.dumps({"text": None}) + "\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl"):
        sample_texts(rows, 4)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        sample_texts(tmp_path / "missing.txt", 4)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_calibrated(attention, make_encoder, tmp_path):
    encoder = make_encoder(lora={}, max_length=64, attention=attention)
    texts = Int8(texts=tuple(SENTENCES), min_cosine=0.9)
    export_encoder(encoder, tmp_path / "export", runtimes=["openvino"], weights="int8", int8=texts)
    graph = (tmp_path / "export" / "openvino" / "openvino_model.xml").read_text()
    assert 'type="FakeQuantize"' in graph, "activations have ranges"
    found = by_hand(open_model(str(tmp_path / "export")).encode(TEXTS), encoder.encode(TEXTS))
    assert found.mean() > 0.9
