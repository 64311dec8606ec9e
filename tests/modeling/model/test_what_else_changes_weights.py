"""Adapters that are more than a sum, weights changed beside `train_all`, and what a dtype must not round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from embrew.encoder import Encoder
from embrew.storage import base_model
from tests.conftest import by_default, stir

TEXTS = ["a heron waits", "interest rates rose by a quarter of a point", "word " * 60]


def cosines(one: Any, other: Any) -> float:
    return float((np.asarray(one) * np.asarray(other)).sum(-1).min())


@pytest.fixture
def opened(model_folder) -> Callable[..., Encoder]:
    def make(family: str = "llama", **settings: Any) -> Encoder:
        return Encoder.from_pretrained(model_folder(family), device="cpu", max_length=64, pooling="mean", **settings)

    return make


KINDS = [{"use_dora": True}, {"lora_bias": True}, {"bias": "all"}, {"use_rslora": True}]


@pytest.mark.parametrize("lora", by_default([{"use_dora": True}], KINDS))
def test_a_merged_adapter_is_the_adapter(lora, opened, tmp_path):
    encoder = opened("phi")  # whose layers have biases
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 16, **lora})
    stir(encoder.backbone, 0.1)
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.requires_grad and parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    encoder.steps = 1
    before = encoder.encode(TEXTS)
    encoder.save_pretrained(tmp_path / "saved")
    merged = Encoder.from_pretrained(tmp_path / "saved", device="cpu", merge_adapter=True)
    assert cosines(before, merged.encode(TEXTS)) > 0.99999
    encoder.merge_adapter()
    assert cosines(before, encoder.encode(TEXTS)) > 0.99999
    encoder.save_pretrained(tmp_path / "merged")
    assert cosines(before, Encoder.from_pretrained(tmp_path / "merged", device="cpu").encode(TEXTS)) > 0.99999


def test_frequencies_are_not_rounded_with_the_weights(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(base_model, "supports_natively", lambda *_: True)
    encoder = opened(dtype="bfloat16")
    assert encoder.backbone.inner.rotary_emb.inv_freq.dtype == torch.float32
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
    stir(encoder.backbone, 0.1)
    encoder.save_pretrained(tmp_path / "saved")
    for merge in (True, False):
        again = Encoder.from_pretrained(tmp_path / "saved", device="cpu", merge_adapter=merge)
        assert again.backbone.dtype == torch.bfloat16
        assert torch.equal(again.backbone.inner.rotary_emb.inv_freq, encoder.backbone.inner.rotary_emb.inv_freq)
    assert np.array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize(
    "lora",
    by_default([{}, {"bias": "all"}], [{}, {"init_lora_weights": "pissa"}, {"bias": "all"}, {"bias": "lora_only"}]),
)
def test_the_frozen_lm_is_the_original_whatever_a_lora_trains(lora, opened):
    encoder, original = opened("phi"), opened("phi")
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8, **lora})
    encoder.keep_frozen_lm()
    assert bool(encoder.backbone._clone) == bool(lora), "a second copy only where it is needed"
    with torch.no_grad():
        for parameter in encoder.backbone.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    tokens = encoder.tokenize(TEXTS[:1])
    with torch.no_grad(), encoder.backbone.frozen_lm() as lm:
        states = lm.hidden_states(tokens)
    with torch.no_grad():
        expected = original.backbone.inner(tokens.input_ids).last_hidden_state
    assert torch.allclose(states, expected, atol=1e-5)
