"""An encoder opened to encode has its adapter in its weights, and is saved with the adapter all the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from peft import PeftModel

from embrew.encoder import Encoder
from embrew.storage import base_model
from tests.conftest import SENTENCES, by_default, stir

TEXTS = [*SENTENCES, "", "<mem0> </s>", "word " * 90]


@pytest.fixture
def trained(model_folder, tmp_path):
    """Return a function that saves an encoder with an adapter, its matrices B about `noise`."""

    def make(noise=0.1, family="llama", dtype="float32", **lora):
        settings = {"template": "{text}{memory}", "pooling": "mean", "max_length": {"query": 16, "document": 48}}
        encoder = Encoder.from_pretrained(model_folder(family), dtype=dtype, memory_tokens=2, **settings)
        encoder.backbone.add_lora({"r": 4, **lora})
        stir(encoder.backbone, noise)
        encoder.steps = 3
        encoder.save_pretrained(tmp_path / "trained", overwrite=True)
        return tmp_path / "trained"

    return make


def carries(encoder: Encoder) -> bool:
    return isinstance(encoder.backbone.model, PeftModel)


@pytest.mark.parametrize(
    ("family", "lora"),
    by_default(
        [("gpt-neox", {"bias": "lora_only"})],
        [("llama", {}), ("qwen3", {"use_dora": True}), ("gpt-neox", {"bias": "lora_only"})],
    ),
)
def test_the_vectors_are_those_of_the_adapter(family, lora, trained):
    folder = trained(family=family, **lora)
    opened, apart = Encoder.from_pretrained(folder), Encoder.from_pretrained(folder, merge_adapter=False)
    assert carries(apart) and not carries(opened)
    for encode in ("encode_query", "encode_document"):
        ours, wanted = (getattr(encoder, encode)(TEXTS) for encoder in (opened, apart))
        assert np.abs(ours - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert opened.weights_hash() == apart.weights_hash()
    with apart.backbone.adapter_off():
        assert np.abs(apart.encode(TEXTS) - opened.encode(TEXTS)).max() > 1e-3, "the adapter changes nothing"


@pytest.mark.parametrize("verify", ["fast", pytest.param("full", marks=pytest.mark.slow)])
def test_saved_again_the_folder_is_the_same(verify, trained, tmp_path):
    """The adapter to the bit, as one that a stage continues, and all settings."""
    folder = trained()
    Encoder.from_pretrained(folder).save_pretrained(tmp_path / "again", verify=verify)
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert files == {path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("*") if path.is_file()}
    for name in files:
        if name.suffix == ".safetensors" and name.stem != "passport":  # whose vectors are rounded
            assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    settings = [json.loads((place / "embrew.json").read_text()) for place in (folder, tmp_path / "again")]
    assert settings[0] | {"checks": None} == settings[1] | {"checks": None}
    assert settings[1]["active_adapter"] and settings[1]["adapters"] == 1
    assert carries(Encoder.from_pretrained(tmp_path / "again", merge_adapter=False))


@pytest.mark.parametrize(("noise", "kept"), [(1e-4, True), (0.5, False)])
def test_bfloat16_keeps_an_adapter_that_rounding_would_take(noise, kept, trained, caplog, monkeypatch):
    monkeypatch.setattr(base_model, "supports_natively", lambda dtype, device: True)  # or emulated
    folder = trained(noise, dtype="bfloat16")
    caplog.clear()
    encoder = Encoder.from_pretrained(folder)
    assert carries(encoder) == kept
    apart = Encoder.from_pretrained(folder, merge_adapter=False)
    assert encoder.weights_hash() == apart.weights_hash()
    if kept:
        assert not caplog.records
        assert torch.equal(torch.from_numpy(encoder.encode(TEXTS)), torch.from_numpy(apart.encode(TEXTS)))
        trained_ones = {p.dtype for p in encoder.parameters() if p.requires_grad}
        assert trained_ones == {torch.float32}
    assert encoder.backbone.dtype == torch.bfloat16
