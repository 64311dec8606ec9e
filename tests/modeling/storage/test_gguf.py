"""GGUF files as base models: the same tokens and vectors as the folder they were made of, kept by link, or refused."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoTokenizer
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.opening import open_model
from embrew.recipe import Recipe
from embrew.storage import gguf
from embrew.storage.base_model import ASSETS
from embrew.storage.saving import REOPEN
from embrew.training.stages import train
from tests import fresh
from tests.conftest import by_default
from tests.gguf_files import write_gguf
from tests.hard_texts import HARD_TEXTS, real_tokenizer_folder
from tests.journeys import tiny_lm
from tests.tokenizer_kinds import byte_level, gpt_neox, metaspace

NANO = ASSETS["nano"]
TINY = {"tiny qwen2": byte_level, "tiny mistral": metaspace}
TEXTS = [text for text in HARD_TEXTS if len(text) < 200]
FAMILIES = {"qwen2": ("qwen2", "qwen2"), "mistral": ("llama", "")}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def nano_gguf(tmp_path_factory) -> Path:
    return write_gguf(NANO, tmp_path_factory.mktemp("gguf") / "nano.Q8_0.gguf", pre="smollm", weights="Q8_0")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A model of 40,000 weights with a tokenizer of 420 tokens."""
    return tiny_lm("qwen2", byte_level(), tmp_path_factory.mktemp("small") / "lm")


@pytest.fixture(scope="module")
def small_gguf(small, tmp_path_factory) -> Path:
    return write_gguf(small, tmp_path_factory.mktemp("gguf") / "small.Q8_0.gguf", pre="qwen2", weights="Q8_0")


@pytest.mark.parametrize("name", by_default(TINY, [*FAMILIES, *TINY]))
def test_tokens_and_vectors_of_the_original(name, tmp_path):
    """On texts that tokenizers disagree on; with the tokenizers of public models too."""
    family, pre = FAMILIES[name.removeprefix("tiny ")]
    made = TINY[name]() if name in TINY else AutoTokenizer.from_pretrained(real_tokenizer_folder(name))
    folder = tiny_lm(family, made, tmp_path / "lm", **SIZES)
    file = write_gguf(folder, tmp_path / "lm.gguf", pre=pre)
    ours, theirs = (Encoder.from_pretrained(path, pooling="mean", max_length=64) for path in (file, folder))
    for text in HARD_TEXTS:
        rows = [list(encoder.template.rows([text], max_length=64)) for encoder in (ours, theirs)]
        assert rows[0] == rows[1], repr(text)[:80]
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), atol=2e-6)


def test_converted_once(small_gguf, tmp_path, monkeypatch):
    """The second opening reads the user's cache, and gives the same; a damaged or removed one is made again."""
    monkeypatch.setenv("EMBREW_CACHE", str(tmp_path / "cache"))
    file = Path(shutil.copy(small_gguf, tmp_path))
    first = Encoder.from_pretrained(file, pooling="mean")
    (kept,) = (tmp_path / "cache" / "gguf").iterdir()
    parsed: list[Any] = []
    monkeypatch.setattr(gguf, "_reader", lambda *arguments: parsed.append(arguments))
    second = Encoder.from_pretrained(file, pooling="mean")
    assert not parsed and second.base == first.base
    np.testing.assert_array_equal(second.encode(TEXTS), first.encode(TEXTS))
    assert second.tokenizer.backend_tokenizer.to_str() == first.tokenizer.backend_tokenizer.to_str()
    second.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "base" / file.name).samefile(file)
    monkeypatch.undo()
    monkeypatch.setenv("EMBREW_CACHE", str(tmp_path / "cache"))
    weights = kept / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\1\0")
    np.testing.assert_array_equal(Encoder.from_pretrained(file, pooling="mean").encode(TEXTS), first.encode(TEXTS))
    assert gguf.conversion_of((file,)) == kept  # made again
    done = CliRunner().invoke(app, ["cache", "--json"])
    assert json.loads(done.stdout)["kept"][0]["folder"] == str(kept)
    assert CliRunner().invoke(app, ["cache", "--clear"]).exit_code == 0 and gguf.conversion_of((file,)) is None


@pytest.mark.slow
def test_a_conversion_that_is_killed_or_raced_is_whole_or_absent(nano_gguf, tmp_path):
    environment = {**os.environ, "EMBREW_CACHE": str(tmp_path / "cache")}
    opened = f"Encoder.from_pretrained({str(nano_gguf)!r}, pooling='mean')"
    opening = f"from embrew import Encoder; print({opened}.encode('a'))"
    kill = "import embrew.storage.gguf as g, os; g.write_checksums = lambda *_: os.kill(os.getpid(), 9); "
    assert fresh.run([sys.executable, "-c", kill + opening], env=environment).returncode == -9
    (left,) = (tmp_path / "cache" / "gguf").iterdir()
    assert left.name.endswith(".partial")
    both = [fresh.Fresh([sys.executable, "-c", opening], env=environment) for _ in range(2)]
    first, second = (process.communicate() for process in both)
    assert [process.returncode for process in both] == [0, 0] and first[0] == second[0] != b""
    (kept,) = (tmp_path / "cache" / "gguf").iterdir()
    assert (kept / "checksums.json").is_file()


def test_no_conversion_is_kept_where_it_cannot_be(small_gguf, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file, no folder")
    monkeypatch.setenv("EMBREW_CACHE", str(tmp_path / "cache"))
    file = small_gguf
    assert Encoder.from_pretrained(file, pooling="mean").encode(TEXTS).shape[1] == 32
    monkeypatch.setenv("EMBREW_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(gguf.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    Encoder.from_pretrained(file, pooling="mean")
    assert not list((tmp_path / "other" / "gguf").iterdir())


def test_tokens_that_are_lost_are_named(tmp_path):
    """As Phi-2 has tokens for runs of spaces."""
    folder = tiny_lm("llama", gpt_neox(), tmp_path / "lm")
    with pytest.raises(ValueError, match=r"its tokenizer finds ' +' in texts as one token"):
        Encoder.from_pretrained(write_gguf(folder, tmp_path / "lm.gguf", pre="phi-2"))


def test_split_files_are_one_model(small, tmp_path):
    whole = write_gguf(small, tmp_path / "whole.gguf", pre="qwen2")
    (tmp_path / "split").mkdir()
    write_gguf(small, tmp_path / "split" / "small.gguf", pre="qwen2", parts=3)
    parts = sorted((tmp_path / "split").iterdir())
    assert len(parts) == 3
    expected = Encoder.from_pretrained(whole, pooling="mean").encode(TEXTS)
    for path in (parts[0].parent, parts[1]):
        encoder = Encoder.from_pretrained(path, pooling="mean")
        np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    encoder.save_pretrained(tmp_path / "saved")
    assert sorted(file.name for file in (tmp_path / "saved" / "base").iterdir()) == [part.name for part in parts]
    np.testing.assert_array_equal(Encoder.from_pretrained(tmp_path / "saved").encode(TEXTS), expected)
    parts[2].unlink()
    with pytest.raises(FileNotFoundError, match=r"one of 3 parts, and small-00003-of-00003\.gguf is missing"):
        Encoder.from_pretrained(parts[0].parent)


@pytest.mark.slow
def test_trained_saved_exported_and_reopened(nano_gguf, tmp_path):
    """The folder holds the file itself by a hard link, and says what it is; a fresh process gives the same vectors."""
    rows = [{"query": f"question {i} on {text}", "positive": text} for i, text in enumerate(TEXTS) if text.strip()]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    training = {"max_steps": 2, "learning_rate": 1e-3, "warmup_steps": 0}
    stage = {"name": "pairs", "objective": {"type": "contrastive"}, "batch": {"size": 8}, "training": training}
    stage |= {"data": {"path": str(tmp_path / "pairs.jsonl")}}
    encoder = {"model": str(nano_gguf), "pooling": {"mode": "mean"}, "lora": {"r": 4}}
    train(Recipe.from_values({"encoder": encoder, "stages": [stage]}), tmp_path / "run")
    opened = Encoder.from_pretrained(tmp_path / "run", merge_adapter=True)
    assert opened.base.as_dict()["stored_as"] == "Q8_0" and opened.base.name == nano_gguf.name
    assert "dequantised from Q8_0" in (tmp_path / "run" / "pairs" / "README.md").read_text()
    assert (tmp_path / "run" / "pairs" / "base" / nano_gguf.name).samefile(nano_gguf)
    assert not np.allclose(opened.encode(TEXTS), open_model(str(nano_gguf), pooling="mean").encode(TEXTS), atol=1e-4)
    export_encoder(opened, tmp_path / "stock")  # which compares vectors
    out = tmp_path / "vectors.safetensors"
    fresh.run([sys.executable, "-c", REOPEN, str(tmp_path / "run"), str(out), "cpu"], check=True)
    assert load_file(out)["vectors"].shape[1] == 256


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def cut_in_metadata(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:3000])
    return path


def replaced(old: bytes, new: bytes) -> Any:
    def change(path: Path) -> Path:
        content = path.read_bytes()
        assert old in content and len(old) == len(new)
        path.write_bytes(content.replace(old, new))
        return path

    return change


def text(path: Path) -> Path:
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    return path


def empty(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def two(path: Path) -> Path:
    shutil.copyfile(path, path.with_name("other.gguf"))
    return path.parent


BROKEN = {
    "truncated": (cut, "cannot be read.*truncated, damaged, or no GGUF file"),
    "truncated in its metadata": (cut_in_metadata, "cannot be read.*truncated, damaged, or no GGUF file"),
    "a pointer of git-lfs": (text, "no GGUF file"),
    "empty": (empty, "no GGUF file"),
    "a tensor under another name": (replaced(b"blk.1.ffn_down.weight", b"blk.1.ffn_dwon.weight"), "lack 1 tensors"),
    "an architecture of its own": (replaced(b"\x05\0\0\0\0\0\0\0qwen2", b"\x05\0\0\0\0\0\0\0qwon2"), "'qwon2', which"),
    "several in a folder": (two, r"holds 2 GGUF models \(model.gguf, other.gguf\)"),
    "exported by embrew": (replaced(b"general.name", b"embrew.model"), "is an export of embrew for llama.cpp"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_refused_in_one_line(kind, small_gguf, tmp_path):
    damage, message = BROKEN[kind]
    shutil.copyfile(small_gguf, tmp_path / "model.gguf")
    path = damage(tmp_path / "model.gguf")
    with pytest.raises(ValueError, match=message) as raised:
        Encoder.from_pretrained(path, pooling="mean")
    assert "\n" not in str(raised.value)


def test_four_bits_need_the_original(small_gguf):
    with pytest.raises(ValueError, match=r"GGUF file of type Q8_0, and quantization: nf4 quantises the original"):
        Encoder.from_pretrained(small_gguf, quantization="nf4")


def test_the_missing_package_is_named(small_gguf, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else found(name, *rest))
    with pytest.raises(ImportError, match=r'pip install "embrew\[gguf\]"'):
        Encoder.from_pretrained(small_gguf)


def test_unknown_word_rules_are_said(small, tmp_path, caplog):
    Encoder.from_pretrained(write_gguf(small, tmp_path / "small.gguf", pre="grandmother"), pooling="mean")
    assert "splits texts by the rule 'grandmother', which is not known here" in caplog.text
