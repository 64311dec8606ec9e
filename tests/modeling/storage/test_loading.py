"""Models that cannot be opened: each says what it is and what is needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from embrew.encoder import Encoder
from embrew.storage.base_model import weights_sha256


@pytest.fixture
def copied(model_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "copied"))


def test_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"'no-such/model' is not nano, smollm2-135m, not a folder"):
        Encoder.from_pretrained("no-such/model")


def test_what_sees_its_future_is_no_causal_lm(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """A BERT that says of itself that it is a decoder, and is not one."""
    config = BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**written, "architectures": ["BertLMHeadModel"]}))
    with pytest.raises(ValueError, match=r"BertLMHeadModel.*lets tokens see their future.*its config.json must say"):
        Encoder.from_pretrained(tmp_path)


def test_an_encoder_decoder(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    config = T5Config(vocab_size=300, d_model=32, d_ff=64, num_layers=1, num_heads=4, d_kv=8)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="encoder-decoder; give a causal LM"):
        Encoder.from_pretrained(tmp_path)


def test_an_unknown_family(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "model_type": "brontosaurus"}))
    with pytest.raises(ValueError, match="family that transformers does not know"):
        Encoder.from_pretrained(copied)


def test_broken_weights(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][0, 0] = float("nan")
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="NaN or infinite hidden states"):
        Encoder.from_pretrained(copied)


def test_truncated_weights(copied: Path) -> None:
    content = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="model.safetensors cannot be read: not a valid safetensors file"):
        Encoder.from_pretrained(copied)


def test_pickled_weights_are_not_read(copied: Path) -> None:
    torch.save(load_file(copied / "model.safetensors"), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be opened"):
        Encoder.from_pretrained(copied)
    with pytest.raises(FileNotFoundError, match="no pickled weights"):
        weights_sha256(copied)


def test_no_tokenizer(copied: Path) -> None:
    for path in copied.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match="cannot be opened"):
        Encoder.from_pretrained(copied)
