"""An ESE run that was stopped and resumed ends with the weights of an uninterrupted run."""

from __future__ import annotations

import shutil
from typing import Any

import torch
from safetensors.torch import load_file

from embrew.losses import espresso
from embrew.recipe import Recipe
from tests.distributed.runs import train_counted, write_data

STEPS, STOPPED_AT = 6, 5  # checkpoints after 2 and 4


def test_stopped_and_resumed_is_never_stopped(model_folder, tmp_path, monkeypatch):
    """To the bit, with dropout on, learned layer weights, and targets from random columns."""
    iterated, find = [], espresso._iterated
    monkeypatch.setattr(espresso, "OVERSAMPLING", 8)  # or a model of 32 dimensions would always be solved exactly
    monkeypatch.setattr(espresso, "_iterated", lambda *given: iterated.append(1) or find(*given))
    shutil.copytree(model_folder("llama"), tmp_path / "llama")
    write_data(tmp_path)
    stage: dict[str, Any] = {
        "name": "one",
        "objective": {"type": "espresso", "base": {"type": "contrastive"}, "compression_size": 8, "layers": "learned"},
        "data": {"path": str(tmp_path / "c.jsonl")},
        "batch": {"size": 4},
        "training": {"max_steps": STEPS, "learning_rate": 1e-2, "save_steps": 2, "use_cpu": True},
    }
    recipe = Recipe.from_values(
        {
            "encoder": {
                "model": str(tmp_path / "llama"),
                "template": "{instruction}{text}",
                "attention": "bidirectional",
                "pooling": {"mode": "mean", "over": "text"},
                "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1},
            },
            "stages": [stage],
        }
    )
    assert train_counted(recipe, tmp_path / "whole") == STEPS
    assert train_counted(recipe, tmp_path / "halves", stop=STOPPED_AT) == STOPPED_AT
    assert train_counted(recipe, tmp_path / "halves", resume=True) == 2, "four of six were done"
    assert iterated
    paths = sorted((tmp_path / "whole" / "one").rglob("*.safetensors"))
    wanted, found = (
        {
            f"{path.name} {name}": tensor
            for path in paths
            for name, tensor in load_file(run / path.relative_to(tmp_path / "whole")).items()
        }
        for run in (tmp_path / "whole", tmp_path / "halves")
    )
    assert wanted and any(tensor.abs().max() > 0 for name, tensor in wanted.items() if "lora_B" in name)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
