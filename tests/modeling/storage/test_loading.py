"""Models that cannot be opened: each says what it is and what is needed."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

from embrew.encoder import Encoder
from embrew.storage.base_model import weights_sha256
from tests.timing import within


@pytest.fixture
def copied(model_folder, tmp_path) -> Path:
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "copied"))


def test_not_there():
    with pytest.raises(FileNotFoundError, match=r"'no-such/model' is not nano, smollm2-135m, not a folder"):
        Encoder.from_pretrained("no-such/model")


def test_what_sees_its_future_is_no_causal_lm(tmp_path, tokenizer):
    """A BERT that says of itself that it is a decoder, and is not one."""
    config = BertConfig(
        vocab_size=300,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.2,  # so that a later token changes the states by more than rounding, whatever is drawn
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**written, "architectures": ["BertLMHeadModel"]}))
    with pytest.raises(ValueError, match=r"BertLMHeadModel.*lets tokens see their future.*its config.json must say"):
        Encoder.from_pretrained(tmp_path)


def test_an_encoder_decoder(tmp_path, tokenizer):
    config = T5Config(vocab_size=300, d_model=32, d_ff=64, num_layers=1, num_heads=4, d_kv=8)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="encoder-decoder; give a causal LM"):
        Encoder.from_pretrained(tmp_path)


def test_an_unknown_family(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "model_type": "brontosaurus"}))
    with pytest.raises(ValueError, match="family that transformers does not know"):
        Encoder.from_pretrained(copied)


def test_broken_weights(copied):
    tensors = load_file(copied / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][0, 0] = float("nan")
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="NaN or infinite hidden states"):
        Encoder.from_pretrained(copied)


def test_truncated_weights(copied):
    content = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="model.safetensors cannot be read: not a valid safetensors file"):
        Encoder.from_pretrained(copied)


def test_pickled_weights_are_not_read(copied):
    torch.save(load_file(copied / "model.safetensors"), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be opened"):
        Encoder.from_pretrained(copied)
    with pytest.raises(FileNotFoundError, match="no pickled weights"):
        weights_sha256(copied)


def test_no_tokenizer(copied):
    for path in copied.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match="cannot be opened"):
        Encoder.from_pretrained(copied)


CONFIG: dict[str, list[Any]] = {
    "pad_token_id": [2**31, "x", 1.5, ["x"]],
    "hidden_size": [-1, 0, "x", None, 1.5, True, 10**9],
    "vocab_size": ["x", -1, None, 10**9],
    "hidden_act": [None, 3, "no such function"],
    "eos_token_id": [["x"], "x", {}],
    "initializer_range": [1e30, -1.0, "x", float("nan")],
    "num_hidden_layers": [10**9, -1, 0, "x", None],
    "num_attention_heads": [0, 3, 10**9, 1.5],
    "num_key_value_heads": [0, -1, 10**9, 10**6],
    "head_dim": [-8, 10**9, "x"],
    "intermediate_size": [10**9, -1, [64], float("nan")],
    "rope_parameters": [3, {"rope_type": "x"}, {"rope_type": None}],
    "num_experts": [10**9],
}
"""Values that no model of this kind has."""


@pytest.mark.parametrize("key", CONFIG)
def test_values_of_a_configuration_are_refused_at_once_in_one_line(key, copied):
    path = copied / "config.json"
    content = json.loads(path.read_text())
    for value in CONFIG[key]:
        path.write_text(json.dumps({**content, key: value}))
        with within(20), pytest.raises(ValueError, match=re.escape(str(copied))) as raised:
            Encoder.from_pretrained(copied, pooling="mean", template="{text}")
        said = str(raised.value)
        assert "\n" not in said, (value, said)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_a_pipe_is_refused_and_not_opened(name, copied):
    (copied / name).unlink()
    os.mkfifo(copied / name)
    with (
        within(60),
        pytest.raises(ValueError, match=rf"{name} is a pipe, a device or a socket; put a file in its place"),
    ):
        Encoder.from_pretrained(copied, pooling="mean", template="{text}")


@pytest.mark.parametrize("name", ["embrew.json", "tokenizer.json", "base/model.safetensors", "memory.safetensors"])
def test_a_pipe_in_an_encoder_is_refused(name, copied, tmp_path):
    folder = tmp_path / "encoder"
    encoder = Encoder.from_pretrained(copied, pooling="mean", template="{text}{memory}", memory_tokens=1)
    encoder.save_pretrained(folder, verify="off")
    (folder / "checksums.json").unlink()
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with within(60), pytest.raises(ValueError, match=rf"{name} is a pipe, a device or a socket"):
        Encoder.from_pretrained(folder)


def test_a_normalizer_that_expands_a_text_is_refused(copied):
    """`e` becomes 1000 letters, three times: 10⁹ characters of each."""
    longer = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 1000}
    path = copied / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, longer, longer, longer]}
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="makes a text up to 1,000,000,000 times as long; allowed are 100"):
        Encoder.from_pretrained(copied, pooling="mean", template="{text}")
    content["normalizer"]["normalizers"] = [{**longer, "content": "ee"}, {"type": "Prepend", "prepend": "▁"}]
    path.write_text(json.dumps(content))
    encoder = Encoder.from_pretrained(copied, pooling="mean", template="{text}")
    assert encoder.encode(["tea"]).shape == (1, 32)
