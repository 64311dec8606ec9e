"""A stage on a 4-bit base learns what it learns on plain layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from embrew.encoder import Encoder
from embrew.model.adapters import dequantize
from embrew.recipe import build
from embrew.storage.saving import reference_vectors
from embrew.training.stages import train
from tests.models import SENTENCES, wide_model
from tests.rows import write_rows
from tests.training.one_stage import one_stage


@pytest.fixture(autouse=True)
def _library() -> None:
    pytest.importorskip("bitsandbytes")


def test_training_is_that_of_dequantised_layers(tokenizer, tmp_path, monkeypatch):
    """Teacher and student of compression are the quantised model, too."""
    data = write_rows(tmp_path / "texts.jsonl", ({"text": f"{a} {b}"} for a in SENTENCES for b in SENTENCES))
    settings = {
        "template": "{text}{memory}",
        "memory_tokens": 3,
        "attention": "bidirectional",
        "pooling": {"mode": "mean", "over": "memory"},
        "max_length": {"query": 64, "document": 64},
        "quantization": "nf4",
        "dtype": "float32",
        "lora": {"r": 4, "lora_dropout": 0.0},
    }
    recipe = one_stage(
        wide_model(tmp_path / "model", tokenizer),
        data,
        settings,
        {"max_steps": 2, "learning_rate": 0.01, "per_device_train_batch_size": 4},
        objective={"type": "compression", "min_context_tokens": 4, "min_target_tokens": 4},
        batch=None,
    )
    encoder = train(recipe, tmp_path / "quantised", verify="off")
    start = build.starting_encoder

    def plain(*args: Any, **how: Any) -> Encoder:
        found = start(*args, **how)
        dequantize(found.backbone.causal_lm, torch.float32)
        return found

    monkeypatch.setattr(build, "starting_encoder", plain)
    other = train(recipe, tmp_path / "plain", verify="off")
    assert encoder.backbone.is_quantized and not other.backbone.is_quantized
    assert (reference_vectors(encoder) - reference_vectors(other)).abs().max() < 1e-4
