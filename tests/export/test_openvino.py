"""An export for OpenVINO gives the encoder's vectors: in OpenVINO alone, and opened again by embrew."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.files.checksums import Damaged
from embrew.machine import cores
from embrew.opening import open_model
from embrew.runtimes.openvino_encoder import OpenVINOEncoder, openvino
from embrew.settings.encoder import Pooling
from embrew.text_encoder import tokenizer_sha256
from tests.conftest import SENTENCES

pytest.importorskip("openvino")
TEXTS = [*SENTENCES, "", "a", "ends with </s> and <|memory_0|>", "long " * 200]
LENGTHS = {"query": 24, "document": 64}


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> dict[str, Path]:
    """One export, filled by the first test that needs it."""
    return {"root": tmp_path_factory.mktemp("openvino")}


@pytest.fixture
def encoder(make_encoder) -> Encoder:
    prompts = {"query": "find: ", "document": "", "other": "words: "}
    return make_encoder(lora={}, prompts=prompts, max_length=LENGTHS, template="{instruction}{text}{memory}{eos}")


@pytest.fixture
def folder(encoder, exported) -> Path:
    """The encoder's export with the longer of its limits, verified in a fresh process."""
    place = exported["root"] / "export"
    if not place.exists():
        export_encoder(encoder, place, runtimes=["openvino"], max_length=64)
    return place


def test_opened_again_it_has_the_vectors_the_prompts_and_both_limits(encoder, folder):
    opened = open_model(str(folder))
    assert isinstance(opened, OpenVINOEncoder) and opened.max_length == LENGTHS and opened.prompts == encoder.prompts
    for method in ("encode", "encode_query", "encode_document"):
        assert np.abs(getattr(opened, method)(TEXTS) - getattr(encoder, method)(TEXTS)).max() < 1e-5, method
    for options in ({"prompt_name": "other"}, {"prompt": "my own words: "}, {"truncate_dim": 8}, {"max_length": 12}):
        assert np.abs(opened.encode(TEXTS, **options) - encoder.encode(TEXTS, **options)).max() < 1e-5, options
    ids = [[5, 6, 7], [9]]
    assert np.abs(opened.encode(ids, batch_tokens=16) - encoder.encode(ids)).max() < 1e-5
    alone = np.stack([opened.encode(text) for text in TEXTS])
    assert np.abs(alone - encoder.encode(TEXTS)).max() < 1e-5
    with pytest.raises(ValueError, match=r"num_layers=1: OpenVINO runs all 2 layers"):
        opened.encode(TEXTS, num_layers=1)
    opened.normalize = False
    with pytest.raises(ValueError, match="normalisation is a part of the exported graph"):
        opened.encode(TEXTS)


def test_it_is_not_exported_again(folder, tmp_path):
    done = CliRunner().invoke(app, ["export", str(folder), str(tmp_path / "again")])
    assert done.exit_code == 1 and f"{folder} is an export for OpenVINO, and an encoder of embrew" in done.stderr


def test_its_hashes_are_the_encoders(encoder, folder):
    opened = open_model(str(folder))
    assert opened.weights_hash() == encoder.weights_hash() and tokenizer_sha256(opened) == tokenizer_sha256(encoder)
    described = opened.describe()
    assert (described["backend"], described["weights"], described["dtype"]) == ("openvino", "fp32", "float32")
    assert described["base"] == encoder.describe()["base"] and described["max_length"] == LENGTHS


def test_its_card_says_how_openvino_opens_it(folder):
    card = (folder / "README.md").read_text()
    assert "openvino/openvino_model.xml" in card and "max_length=64" in card and "'find: ' + " in card
    assert "SentenceTransformer(" not in card and "library_name: embrew" in card


@pytest.mark.skipif(cores() == 1, reason="OpenVINO's bfloat16 ends the process on a single core")
def test_padding_on_the_left_changes_nothing(encoder, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    batch = tokenizer(SENTENCES, padding=True, return_tensors="np")
    assert (batch["attention_mask"][:, 0] == 0).any()
    graph = openvino().Core().compile_model(folder / "openvino" / "openvino_model.xml", "CPU")
    found = graph({name: batch[name] for name in ("input_ids", "attention_mask")})["sentence_embedding"]
    assert cosines(found, encoder.encode(SENTENCES)).min() > 0.999, "bfloat16, where the CPU has it"


@pytest.mark.slow
def test_pooling_over_the_text_refuses_a_prompt(make_encoder, tmp_path):
    """The graph takes a row for one text, so a prompt's tokens would be pooled, too."""
    encoder = make_encoder(memory_tokens=0, pooling=Pooling("mean", "text"), max_length=64)
    export_encoder(encoder, tmp_path / "export", runtimes=["openvino"], verify="off")
    opened = open_model(str(tmp_path / "export"))
    assert np.abs(opened.encode(TEXTS) - encoder.encode(TEXTS)).max() < 1e-5
    with pytest.raises(ValueError, match="pools over the text and cannot tell a prompt from it"):
        opened.encode(TEXTS, prompt="find: ")


def test_damage_is_found(folder, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    path = changed / "openvino" / "openvino_model.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 64
    path.write_bytes(data)
    with pytest.raises(Damaged, match=r"openvino_model\.bin"):
        open_model(str(changed))
    path.unlink()
    with pytest.raises(Damaged, match=r"openvino_model\.bin"):
        open_model(str(changed))


def test_other_vectors_than_in_parity_json_are_refused(folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "checksums.json").unlink()
    parity = json.loads((other / "parity.json").read_text())
    for case in parity["cases"]:
        for text in case["texts"]:
            text["vector"] = text["vector"][::-1]
    (other / "parity.json").write_text(json.dumps(parity))
    with pytest.raises(ValueError, match="gives other vectors: largest difference"):
        open_model(str(other))


@pytest.mark.slow
def test_bf16_weights_halve_the_file_and_are_checked_by_cosine(encoder, folder, tmp_path):
    export_encoder(encoder, tmp_path / "bf16", runtimes=["openvino"], max_length=64, weights="bf16")
    sizes = [(place / "openvino" / "openvino_model.bin").stat().st_size for place in (tmp_path / "bf16", folder)]
    assert sizes[0] < 0.65 * sizes[1]
    opened = open_model(str(tmp_path / "bf16"), dtype="float32")
    found = cosines(opened.encode(TEXTS), encoder.encode(TEXTS))
    assert 0.999 < found.min() < 1 - 1e-7  # rounded, and not otherwise changed
    assert opened.weights_hash() != encoder.weights_hash()
    assert opened.describe()["weights"] == "bf16"


def test_without_openvino_the_error_names_the_extra(encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ValueError, match=r'pip install "embrew\[openvino\]"'):
        export_encoder(encoder, tmp_path / "export", runtimes=["openvino"], max_length=64)
    assert not list(tmp_path.iterdir())
