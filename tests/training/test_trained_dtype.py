"""Trained weights are float32, whatever dtype a recipe, a folder or a base has."""

from __future__ import annotations

import gc
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM

from embrew.encoder import Encoder
from embrew.methods import Contrastive
from embrew.model.weights import train_in_float32
from embrew.recipe import Recipe
from embrew.storage import base_model
from embrew.training import run
from embrew.training.stages import train
from embrew.training.step import TrainStep
from embrew.training.trainer import StageTrainer
from tests.conftest import SENTENCES
from tests.training.one_stage import one_stage

RATE = 5e-6  # of the second stage of AutoRegEmbed


@pytest.fixture
def folders(tmp_path, model_folder, encoder_folder, monkeypatch) -> dict[str, Path]:
    """Tiny models saved in bfloat16, and a CPU that is taken to compute in it."""
    for module in (base_model, run):
        monkeypatch.setattr(module, "supports_natively", lambda dtype, device: True)
    gc.freeze()  # the trainer collects garbage at every start, which takes longer than these steps
    found = {}
    for name, source, kind in (
        ("llama", model_folder("llama"), AutoModelForCausalLM),
        ("bert", encoder_folder("bert"), AutoModel),
    ):
        place = found[name] = tmp_path / name
        kind.from_pretrained(source).to(torch.bfloat16).save_pretrained(place)
        for path in source.glob("tokenizer*"):
            (place / path.name).write_bytes(path.read_bytes())
    return found


def recipe(folder: Path, stage: dict[str, Any] | None = None, **encoder: Any) -> Recipe:
    """One step of AdamW, fused, under a constant rate."""
    rows = [{"query": text[:20], "positive": text[20:]} for text in SENTENCES]
    data = folder.parent / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {
        "max_steps": 1, "learning_rate": RATE, "lr_scheduler_type": "constant", "optim": "adamw_torch_fused",
        "weight_decay": 0.0, "save_strategy": "no", "logging_steps": 1, "use_cpu": True,
    }  # fmt: skip
    stage = dict(stage or {})
    training |= stage.pop("training", {})
    data = stage.pop("data", data)
    return one_stage(
        folder, data, {"max_length": {"query": 32, "document": 32}, "lora": None, **encoder}, training, **stage
    )


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """The share of weights with another value; of the rows of the embedding matrix, those that were read."""
    changed = total = 0
    for name, tensor in before.items():
        if name not in after or "lm_head" in name or "position" in name:
            continue
        one, other = tensor.float(), after[name].float()
        if one.ndim == 2 and "embed" in name:
            read = (one != other).any(1)
            one, other = one[read], other[read]
        changed += int((one != other).sum())
        total += one.numel()
    return changed / total


@pytest.mark.parametrize("family", ["llama", pytest.param("bert", marks=pytest.mark.slow)])
def test_nearly_all_weights_move(family, folders, tmp_path, caplog):
    before = load_file(folders[family] / "model.safetensors")
    assert {tensor.dtype for tensor in before.values()} == {torch.bfloat16}
    with caplog.at_level(logging.INFO):
        attention = "causal" if family == "llama" else "bidirectional"
        encoder = train(recipe(folders[family], dtype="bfloat16", attention=attention), tmp_path / "run")
    saved = load_file(tmp_path / "run" / "one" / "weights" / "model.safetensors")
    assert moved(before, saved) > 0.98, f"{moved(before, saved):.1%} of the weights moved"
    said = [record.message for record in caplog.records if "training.bf16" in record.message]
    assert said == ["one  trained weights are float32, matrix products bfloat16 (training.bf16)"]
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    settings = json.loads((tmp_path / "run" / "one" / "embrew.json").read_text())
    again = Encoder.from_pretrained(tmp_path / "run")
    assert settings["dtype"] == again.describe()["dtype"] == encoder.describe()["dtype"] == "float32"
    assert abs(again.encode(SENTENCES) - encoder.encode(SENTENCES)).max() < 1e-6


def test_the_arithmetic_is_in_bfloat16(folders, tmp_path, monkeypatch):
    seen: set[torch.dtype] = set()
    step = StageTrainer.training_step

    def watched(self: StageTrainer, *args: Any, **kwargs: Any) -> Tensor:
        layer = self.step.encoder.backbone.inner.layers[0].mlp.down_proj
        hook = layer.register_forward_hook(lambda *args: seen.add(args[-1].dtype))
        loss = step(self, *args, **kwargs)
        hook.remove()
        for name, parameter in self.step.trainable().items():
            assert parameter.dtype == parameter.grad.dtype == torch.float32, name
        return loss

    monkeypatch.setattr(StageTrainer, "training_step", watched)
    for dtype, training, wanted in (
        ("bfloat16", {}, torch.bfloat16),
        ("bfloat16", {"bf16": False}, torch.float32),
        ("auto", {}, torch.float32),  # on a CPU
    ):
        seen.clear()
        train(
            recipe(folders["llama"], {"training": training}, dtype=dtype), tmp_path / f"{dtype}{len(training)}{wanted}"
        )
        assert seen == {wanted}, (dtype, training)


def test_bfloat16_that_is_emulated_is_named(folders, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(run, "supports_natively", lambda dtype, device: False)
    started = recipe(folders["llama"], {"training": {"bf16": True}}, dtype="float32")
    train(started, tmp_path / "run")
    assert [record.message for record in caplog.records if "emulates bfloat16" in record.message]


def test_a_lora_on_a_frozen_bfloat16_base(folders, tmp_path):
    """What is trained is float32: LoRA, memory tokens, a trained copy of the embedding matrix; the rest stays."""
    made = recipe(
        folders["llama"],
        {"objective": {"type": "compression", "min_context_tokens": 3, "min_target_tokens": 3}, "batch": None,
         "data": {"path": str(tmp_path / "texts.jsonl")}, "training": {"per_device_train_batch_size": 4, "bf16": True}},
        dtype="bfloat16", template="{text}{memory}", memory_tokens=2, pooling={"mode": "mean", "over": "memory"},
        lora={"r": 2}, train_embeddings="full",
    )  # fmt: skip
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
    encoder = train(made, tmp_path / "run")
    trained = {name: p.dtype for name, p in encoder.named_parameters() if p.requires_grad}
    assert len(trained) > 10 and set(trained.values()) == {torch.float32}
    frozen = {p.dtype for p in encoder.backbone.inner.layers.parameters() if not p.requires_grad}
    assert frozen == {torch.bfloat16}
    again = Encoder.from_pretrained(tmp_path / "run")
    for (name, ours), theirs in zip(encoder.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(ours.detach(), theirs.detach()) and ours.dtype == theirs.dtype, name


def test_a_full_stage_after_a_merged_lora(folders, tmp_path):
    """The adapter is merged into float32 weights, and trained on in float32."""
    train(recipe(folders["llama"], {"training": {"learning_rate": 1e-2}}, lora={"r": 2}), tmp_path / "lora")
    lora = Encoder.from_pretrained(tmp_path / "lora", merge_adapter=True)
    start = {name: p.detach().clone() for name, p in lora.backbone.causal_lm.named_parameters()}
    train(recipe(folders["llama"], {"adapter": "merge"}, dtype="bfloat16"), tmp_path / "run", start=tmp_path / "lora")
    saved = load_file(tmp_path / "run" / "one" / "weights" / "model.safetensors")
    off = max(float((saved[name] - tensor).abs().max()) for name, tensor in start.items())
    assert off <= 1.1 * RATE, "the merged weights were rounded"
    assert moved(start, saved) > 0.98


@pytest.mark.parametrize(("rate", "lost"), [(1e-4, True), (0.5, False)])
def test_an_adapter_that_rounding_takes_away_is_named(rate, lost, folders, tmp_path, caplog):
    """Merged into bfloat16 weights, as a stage with `adapter: merge` does."""
    train(recipe(folders["llama"], {"training": {"learning_rate": rate}}, lora={"r": 2}), tmp_path / "lora")
    exact = Encoder.from_pretrained(tmp_path / "lora", dtype="float32", merge_adapter=True)
    base = Encoder.from_pretrained(folders["llama"], dtype="float32")
    assert not [record for record in caplog.records if "rounding is" in record.message]
    rounded = Encoder.from_pretrained(tmp_path / "lora", dtype="bfloat16", merge_adapter=True)
    error = change = 0.0
    parts = (one.backbone.causal_lm.parameters() for one in (rounded, exact, base))
    for ours, wanted, start in zip(*parts, strict=True):
        error += float((ours.detach().float() - wanted.detach()).square().sum())
        change += float((wanted - start).detach().square().sum())
    share = 100 * (error / change) ** 0.5
    said = [record.message for record in caplog.records if "rounding is" in record.message]
    assert bool(said) == lost == (share > 10)
    assert all(f"rounding is {share:.0f} %" in message for message in said)


def test_a_step_refuses_rounded_weights(make_encoder):
    encoder = make_encoder()
    encoder.backbone.train_all()
    encoder.to(torch.bfloat16)
    with pytest.raises(ValueError, match="lose most steps to rounding; call .*train_in_float32"):
        TrainStep(encoder, Contrastive())
    changed = train_in_float32(encoder)
    assert "backbone.memory" in changed and len(changed) > 10
    TrainStep(encoder, Contrastive())
    assert train_in_float32(encoder) == []
