"""Folders: what is written opens again as the same encoder, alone, and writing is all or nothing."""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from embrew.encoder import Encoder
from embrew.files.checksums import write_checksums
from embrew.settings.encoder import Pooling
from embrew.storage import saving
from tests.conftest import SENTENCES, by_default, stir

SETTINGS = {
    "template": "{instruction}{text}{memory}",
    "attention": "bidirectional",
    "pooling": Pooling("mean", "memory"),
    "prompts": {"query": "find: "},
    "max_length": {"query": 32, "document": 64},
}


def opened(folder: Path, lora: bool = True, **options: object) -> Encoder:
    encoder = Encoder.from_pretrained(folder, memory_tokens=3, **{**SETTINGS, **options})  # type: ignore[arg-type]
    if lora:
        encoder.backbone.add_lora({"r": 4})
        stir(encoder.backbone)
        encoder.steps = 5
    return encoder


def same(a: Encoder, b: Encoder) -> None:
    assert np.abs(a.encode_query(SENTENCES) - b.encode_query(SENTENCES)).max() < 1e-6
    assert a.weights_hash() == b.weights_hash()
    assert a.settings == b.settings and a.steps == b.steps


@pytest.mark.parametrize("family", by_default(["llama-tied", "gemma3"], ["llama-tied", "qwen3", "gemma3", "gpt-neox"]))
def test_round_trip(family, model_folder, tmp_path):
    encoder = opened(model_folder(family))
    encoder.save_pretrained(tmp_path / "saved")
    again = Encoder.from_pretrained(tmp_path / "saved")
    same(encoder, again)
    checks = json.loads((tmp_path / "saved" / "embrew.json").read_text())["checks"]
    assert checks["compared_with"] == "its tensors and those in memory, to the bit"
    assert checks["cosine_to_switched_off"] < 0.9999
    again.save_pretrained(tmp_path / "twice")
    same(encoder, Encoder.from_pretrained(tmp_path / "twice"))


def test_the_folder_stands_alone(model_folder, tmp_path):
    """A base without a public name travels with the encoder, and no path of this machine is written."""
    base = tmp_path / "somewhere" / "my-base"
    base.mkdir(parents=True)
    for path in model_folder("llama").iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    encoder = opened(base)
    encoder.save_pretrained(tmp_path / "saved")
    for path in (tmp_path / "saved").rglob("*.json"):
        assert str(tmp_path) not in path.read_text(), path
    moved = (tmp_path / "saved").rename(tmp_path / "moved")
    (tmp_path / "somewhere").rename(tmp_path / "gone")
    same(encoder, Encoder.from_pretrained(moved))


def test_saved_from_another_working_directory(model_folder, tmp_path, monkeypatch):
    shutil.copytree(model_folder("llama"), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    encoder = Encoder.from_pretrained("model")
    encoder.save_pretrained("one", verify="off")
    reopened = Encoder.from_pretrained("one")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    encoder.save_pretrained("two", verify="off")
    reopened.save_pretrained("three", verify="off")
    np.testing.assert_array_equal(Encoder.from_pretrained("three").encode(SENTENCES), encoder.encode(SENTENCES))


@pytest.mark.parametrize("process", ["fork", pytest.param("new interpreter", marks=pytest.mark.slow)])
def test_nano_is_named_by_its_hash_and_verified_in_a_fresh_process(process, request, tmp_path):
    """In a fork of a process without embrew; in a new interpreter, as a user has it, with the slow tests."""
    if process == "new interpreter":
        request.getfixturevalue("new_interpreter")
    encoder = Encoder.from_pretrained("nano", pooling="mean", max_length=64)
    encoder.backbone.add_lora({"r": 2})
    stir(encoder.backbone, 0.02)
    encoder.steps = 1
    encoder.save_pretrained(tmp_path / "saved", verify="full")
    written = json.loads((tmp_path / "saved" / "embrew.json").read_text())
    assert written["base"]["name"] == "nano" and len(written["base"]["sha256"]) == 64
    assert not (tmp_path / "saved" / "base").exists() and written["checks"]["verify"] == "full"
    written["base"]["sha256"] = "0" * 64
    (tmp_path / "saved" / "embrew.json").write_text(json.dumps(written))
    write_checksums(tmp_path / "saved")
    with pytest.raises(ValueError, match="adapter means nothing on other weights"):
        Encoder.from_pretrained(tmp_path / "saved")


def test_an_existing_folder_is_left_alone(model_folder, tmp_path):
    encoder = opened(model_folder("llama"))
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "mine.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="choose another folder"):
        encoder.save_pretrained(tmp_path / "saved")
    with pytest.raises(FileExistsError, match="it is left alone"):
        encoder.save_pretrained(tmp_path / "saved", overwrite=True)
    assert (tmp_path / "saved" / "mine.txt").read_text() == "precious"
    (tmp_path / "saved" / "mine.txt").unlink()
    encoder.save_pretrained(tmp_path / "saved")
    encoder.save_pretrained(tmp_path / "saved", overwrite=True)
    same(encoder, Encoder.from_pretrained(tmp_path / "saved"))
    assert [path.name for path in tmp_path.iterdir()] == ["saved"], "nothing temporary is left behind"


def corrupt_adapter(folder: Path) -> None:
    path = next(folder.glob("adapters/*/adapter_model.safetensors"))
    tensors = load_file(path)
    tensors[sorted(tensors)[0]] += 0.5
    save_file(tensors, path)


def corrupt_memory(folder: Path) -> None:
    save_file({"memory": load_file(folder / "memory.safetensors")["memory"] * 2}, folder / "memory.safetensors")


def corrupt_settings(folder: Path) -> None:
    written = json.loads((folder / "embrew.json").read_text())
    (folder / "embrew.json").write_text(json.dumps({**written, "template": "query: {text}{memory}"}))


@pytest.mark.parametrize(
    ("corrupt", "words"),
    [
        (corrupt_adapter, "written with other values"),
        (corrupt_memory, "memory was written with other values"),
        (corrupt_settings, "embrew.json holds template"),
    ],
)
def test_the_proof_notices(corrupt, words, model_folder, tmp_path, monkeypatch):
    """What is damaged between writing and verification is found; the folder is not left behind, the model unchanged."""
    encoder = opened(model_folder("llama"))
    before = encoder.encode(SENTENCES)
    honest = saving.verify_folder

    def damaged(encoder: Encoder, folder: Path, verify: str) -> dict[str, object]:
        corrupt(folder)
        return honest(encoder, folder, verify)

    monkeypatch.setattr(saving, "verify_folder", damaged)
    with pytest.raises(RuntimeError, match=words):
        encoder.save_pretrained(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []
    assert np.array_equal(encoder.encode(SENTENCES), before)


def test_an_adapter_that_does_nothing_is_noticed(model_folder, tmp_path, caplog):
    encoder = opened(model_folder("llama"), lora=False)
    encoder.backbone.add_lora({"r": 4})  # B is zero
    encoder.save_pretrained(tmp_path / "untrained")
    encoder.steps = 3
    assert not caplog.text
    encoder.save_pretrained(tmp_path / "saved")
    assert "trained for 3 steps and changes no vector at all; it is saved as it is" in caplog.text
    assert Encoder.from_pretrained(tmp_path / "saved").steps == 3


def test_no_pickle_and_other_errors(model_folder, tmp_path):
    encoder = opened(model_folder("llama"))
    encoder.save_pretrained(tmp_path / "saved")
    files = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".md", ".safetensors", ".yaml"}
    with pytest.raises(ValueError, match="leave out memory_tokens"):
        Encoder.from_pretrained(tmp_path / "saved", memory_tokens=2)
    with pytest.raises(ValueError, match="choose from fast, full, off"):
        encoder.save_pretrained(tmp_path / "other", verify="some")
    written = json.loads((tmp_path / "saved" / "embrew.json").read_text())
    (tmp_path / "saved" / "embrew.json").write_text(json.dumps({**written, "format": 99}))
    write_checksums(tmp_path / "saved")
    with pytest.raises(ValueError, match="format 99; this embrew reads format 5"):
        Encoder.from_pretrained(tmp_path / "saved")


def test_a_checkout_that_is_not_installed_saves(monkeypatch, model_folder, tmp_path):
    def version(name: str) -> str:
        if name == "embrew":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    opened(model_folder("llama")).save_pretrained(tmp_path / "saved", verify="off")
    found = json.loads((tmp_path / "saved" / "embrew.json").read_text())["versions"]
    assert found["embrew"] is None and found["torch"] == "1"
