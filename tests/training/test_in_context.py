"""Stages with demonstrations: stopped and resumed, saved and opened, and the start of the next stage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from embrew.encoder import Encoder
from embrew.model.contexts import Context
from embrew.recipe import Recipe
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.distributed.runs import train_counted

PAIRS = (("a fox", "a quick brown fox"), ("the sea", "she sells sea shells"))


def recipe(model: Path, folder: Path, kind: str = "epic", workers: int = 0, **demonstrations: object) -> Recipe:
    """Six steps over two data sets, a checkpoint every three."""
    data = []
    for name in ("a", "b"):
        rows = [
            {"query": f"{name} {SENTENCES[i % 5][: 8 + i]}", "positive": f"{SENTENCES[i % 5][8 + i :]} {i}"}
            for i in range(12)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data.append({"path": str(folder / f"{name}.jsonl"), "instruction": f"{name}: "})
    training = {"max_steps": 6, "learning_rate": 1e-2, "use_cpu": True, "save_steps": 3, "logging_steps": 2}
    return Recipe.from_values(
        {
            "encoder": {
                "model": str(model),
                "template": "{instruction}{text}{eos}",
                "pooling": {"mode": "last"},
                "demonstrations": demonstrations,
                "max_length": {"query": 48, "document": 48},
                "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1},
            },
            "stages": [
                {
                    "name": "one",
                    "objective": {"type": kind},
                    "data": data,
                    "batch": {"size": 6, "mini_batch_size": 4},
                    "training": {**training, "dataloader_num_workers": workers},
                }
            ],
        }
    )


@pytest.mark.slow
def test_stopped_and_gone_on_in_workers(model_folder, tmp_path, caplog):
    """What is drawn depends neither on restarts nor on workers."""
    caplog.set_level("INFO")
    whole = train(recipe(model_folder("llama"), tmp_path), tmp_path / "whole")
    assert "demo_similarity" in caplog.text and "other_similarity" in caplog.text
    again = recipe(model_folder("llama"), tmp_path)
    assert train_counted(again, tmp_path / "halves", stop=5) == 5
    assert train_counted(again, tmp_path / "halves", resume=True) == 3, "three of six were done"
    train(recipe(model_folder("llama"), tmp_path, workers=2), tmp_path / "workers")
    found = [
        load_file(tmp_path / name / "one" / "demonstrations.safetensors") for name in ("whole", "halves", "workers")
    ]
    for other in found[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in found[0].items())
    start = Encoder.from_pretrained(
        model_folder("llama"), template="{instruction}{text}{eos}", demonstrations=whole.demonstrator.settings
    )
    begun = start.demonstrator.state_dict()
    assert all((tensor - begun[name]).abs().max() > 1e-4 for name, tensor in found[0].items()), "it was trained"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), [("epic", {"learnable": 5}), ("icl", {"compress": "none"})], ids=str)
def test_what_was_trained_is_opened_and_goes_on(model_folder, tmp_path, kind, settings):
    made = recipe(model_folder("llama"), tmp_path, kind, **settings)
    trained = train(made, tmp_path / "run", verify="fast")
    again = Encoder.from_pretrained(tmp_path / "run")
    for encoder in (trained, again):
        encoder.add_context("task", Context("a: ", PAIRS))
    np.testing.assert_allclose(again.encode(SENTENCES, "task"), trained.encode(SENTENCES, "task"), atol=1e-6)
    train(made, tmp_path / "further", start=tmp_path / "run")
    other = recipe(model_folder("llama"), tmp_path, "epic", compress="query")
    with pytest.raises(ValueError, match=r"differs from the recipe's encoder: encoder\.demonstrations="):
        train(other, tmp_path / "other", start=tmp_path / "run")
