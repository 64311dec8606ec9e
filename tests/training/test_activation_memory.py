"""`activation_checkpointing: auto`: decided by memory, noted, kept when resumed, and without effect on results."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

from embrew import build, free_memory
from embrew.build import stages
from embrew.recipe import Recipe
from embrew.recipe.stage import StageConfig
from embrew.training import activation_memory
from embrew.training.gradcache import Chunks
from embrew.training.stages import train
from embrew.training.step_cost import How, counted, without_values
from tests.conftest import SENTENCES

LORA = {"r": 4, "lora_dropout": 0.2, "target_modules": ["q_proj", "v_proj", "down_proj"]}
ARGUMENTS = SimpleNamespace(seed=1, bf16=False, fp16=False, per_device_train_batch_size=8)


def values(folder: Path, place: Path, **stage):
    rows = [{"query": text, "positive": text[5:], "negative": text[::-1]} for text in SENTENCES * 3]
    (place / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {"max_steps": 3, "learning_rate": 0.01, "use_cpu": True, **stage.pop("training", {})}
    encoder = {
        "model": str(folder),
        "pooling": {"mode": "mean"},
        "lora": LORA,
        "max_length": {"query": 32, "document": 32},
    }
    given = {"objective": {"type": "contrastive"}, "batch": {"size": 4}, **stage}
    data = {"path": str(place / "pairs.jsonl")}
    return {"encoder": encoder, "stages": [{"name": "one", "data": data, "training": training, **given}]}


def trained(folder: Path):
    return load_file(folder / "one" / "adapters" / "0" / "adapter_model.safetensors")


@pytest.mark.parametrize("batch", [{"size": 4}, {"size": 4, "mini_batch_size": 2}])
def test_the_decision_is_noted_and_changes_no_bit(batch, model_folder, tmp_path, monkeypatch, caplog):
    """With dropout, and with gradient caching; free memory decides."""
    found = {}
    caplog.set_level(logging.INFO)
    for name, free in (("off", 10**12), ("on", 10**5)):
        monkeypatch.setattr(activation_memory, "free_bytes", lambda _, free=free: free)
        asked = values(model_folder("llama"), tmp_path, batch=batch, training={"activation_checkpointing": "auto"})
        train(Recipe.from_values(asked), tmp_path / name)
        noted = json.loads((tmp_path / name / "run.json").read_text())["activation_checkpointing"]["one"]
        assert noted["recompute"] == (name == "on") and noted["estimated_bytes"] > 10**5
        (line,) = [line.message for line in caplog.records if "activation checkpointing" in line.message]
        assert f"activation checkpointing {name}: activations need about 0.00 GB, free is" in line
        caplog.clear()
        found[name] = trained(tmp_path / name)
    train(Recipe.from_values(values(model_folder("llama"), tmp_path, batch=batch)), tmp_path / "plain")
    for name, tensor in trained(tmp_path / "plain").items():
        assert torch.equal(found["off"][name], tensor), name
        assert torch.equal(found["on"][name], tensor), name


def test_a_resumed_stage_keeps_the_first_decision(model_folder, tmp_path, monkeypatch):
    asked = values(
        model_folder("llama"), tmp_path, training={"activation_checkpointing": "auto", "save_steps": 1, "max_steps": 3}
    )

    class Killed(Exception):
        pass

    def killed(*_, **__):
        raise Killed

    monkeypatch.setattr(activation_memory, "free_bytes", lambda _: 10**5)
    with monkeypatch.context() as patched:
        patched.setattr("embrew.training.stages.StageTrainer.fit", killed)
        with pytest.raises(Killed):
            train(Recipe.from_values(asked), tmp_path / "run")
    monkeypatch.setattr(activation_memory, "free_bytes", lambda _: 10**12)
    train(Recipe.from_values(asked), tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["activation_checkpointing"]["one"]["recompute"]
    train(Recipe.from_values(asked), tmp_path / "anew")
    assert not json.loads((tmp_path / "anew" / "run.json").read_text())["activation_checkpointing"]["one"]["recompute"]


@pytest.mark.parametrize("kind", ["contrastive", "compression"])
def test_the_estimate_is_the_memory_of_the_largest_batch(kind, make_encoder):
    """As `plan` counts it; gradient caching holds a chunk of it."""
    encoder = make_encoder("llama", lora={"lora_dropout": 0.1}).train()
    words = " ".join(SENTENCES)
    rows = [{"query": words[:90], "positive": words[90:180], "text": words[:200]} for _ in range(8)]
    columns = ["text"] if kind == "compression" else ["query", "positive"]
    rows = [{name: row[name] for name in columns} for row in rows]
    objective = build.objective({"type": kind})
    objective.setup(encoder)
    before = torch.get_rng_state()
    estimated = activation_memory.estimate(encoder, objective, Dataset.from_list(rows), ARGUMENTS, None)
    assert torch.equal(torch.get_rng_state(), before), "counting drew random numbers"
    cost = counted(without_values(encoder), objective, objective.collate(rows, encoder, seed=1), How(kind="cpu"))
    assert cost.saved < estimated
    assert estimated == pytest.approx(activation_memory.MARGIN * cost.activations, rel=0.02)
    if kind == "contrastive":
        a_chunk = activation_memory.estimate(encoder, objective, Dataset.from_list(rows), ARGUMENTS, Chunks(rows=2))
        assert a_chunk < 0.3 * estimated


def test_free_memory_is_that_of_the_container(tmp_path, monkeypatch):
    for name, content in {"max": "8000", "current": "7000", "stat": "anon 10\ninactive_file 500\n"}.items():
        (tmp_path / f"memory.{name}").write_text(content)
    monkeypatch.setattr(free_memory, "CGROUP", tmp_path)
    assert free_memory.total_and_free() == (8000, 1500)
    assert activation_memory.free_bytes(torch.device("cpu")) == 1500
    (tmp_path / "memory.max").write_text("max")
    total, free = free_memory.total_and_free()
    assert total > 10**8 and free is not None and 0 < free <= total


def test_the_argument_has_its_old_name_before_transformers_5_20(monkeypatch):
    """Both keys of a recipe, and the decision of `auto`."""
    monkeypatch.setattr(
        stages,
        "OLD_NAMES",
        {name: name.replace("activation", "gradient") for name in (stages.RECOMPUTES, f"{stages.RECOMPUTES}_kwargs")},
    )
    monkeypatch.setattr(stages, "TrainingArguments", SimpleNamespace)
    training = {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": False}}
    settings = {"name": "one", "objective": {"type": "contrastive"}, "data": {"path": "none"}, "training": training}
    stage = StageConfig.model_validate(settings)
    args = stages.training_arguments(stage, build.objective(stage.objective), Path("unused"), seed=1)
    assert args.gradient_checkpointing is True and args.gradient_checkpointing_kwargs == {"use_reentrant": False}
    assert not hasattr(args, "activation_checkpointing")
    stages.set_recomputation(args, False)
    assert args.gradient_checkpointing is False
