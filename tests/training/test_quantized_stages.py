"""Stages on a 4-bit base: handed over by merging, resumed to the bit, and as they are with plain layers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from embrew.encoder import Encoder
from embrew.model.adapters import dequantize
from embrew.recipe import Recipe, build
from embrew.storage.saving import reference_vectors
from embrew.training.stages import train
from tests.conftest import SENTENCES, wide_model

STEPS = {"max_steps": 2, "save_steps": 1, "learning_rate": 0.01, "use_cpu": True}


@pytest.fixture(autouse=True)
def _library() -> None:
    pytest.importorskip("bitsandbytes")


@pytest.fixture
def values(tokenizer, tmp_path) -> dict[str, Any]:
    """Compression, then contrastive training with gradient caching and activation checkpointing."""
    texts = [f"{a} {b} Part {i}." for i, a in enumerate(SENTENCES) for b in SENTENCES]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    data = {"path": str(tmp_path / "texts.jsonl")}
    compression = {"type": "compression", "min_context_tokens": 4, "min_target_tokens": 4}
    return {
        "encoder": {
            "model": str(wide_model(tmp_path / "model", tokenizer)),
            "template": "{text}{memory}",
            "memory_tokens": 3,
            "attention": "bidirectional",
            "pooling": {"mode": "mean", "over": "memory"},
            "max_length": {"query": 64, "document": 64},
            "quantization": "nf4",
            "lora": {"r": 4, "lora_dropout": 0.1},
        },
        "stages": [
            {
                "name": "compress",
                "objective": compression,
                "data": data,
                "training": {**STEPS, "per_device_train_batch_size": 4},
            },
            {
                "name": "contrast",
                "adapter": "merge",
                "objective": {"type": "contrastive", "positives": "dropout"},
                "data": data,
                "batch": {"size": 4, "mini_batch_size": 2},
                "training": {**STEPS, "activation_checkpointing": True},
            },
        ],
    }


def test_training_is_that_of_dequantised_layers(values, tmp_path, monkeypatch):
    """Teacher and student of compression are the quantised model, too."""
    values["encoder"]["dtype"] = "float32"
    values["encoder"]["lora"]["lora_dropout"] = 0.0
    values["stages"] = values["stages"][:1]
    encoder = train(Recipe.from_values(values), tmp_path / "quantised", verify="off")
    start = build.starting_encoder

    def plain(*args: Any, **how: Any) -> Encoder:
        found = start(*args, **how)
        dequantize(found.backbone.causal_lm, torch.float32)
        return found

    monkeypatch.setattr(build, "starting_encoder", plain)
    other = train(Recipe.from_values(values), tmp_path / "plain", verify="off")
    assert encoder.backbone.is_quantized and not other.backbone.is_quantized
    assert (reference_vectors(encoder) - reference_vectors(other)).abs().max() < 1e-4
