"""`torch_compile: true`: compiled layers give the same loss, gradients and folders as plain ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch._inductor import exc

from embrew import assembly
from embrew.model.layers import compiled_layers, layers_of
from embrew.recipe import Recipe
from embrew.training.gradcache import Chunks
from embrew.training.launch import check_launch
from embrew.training.stages import train
from embrew.training.step import TrainStep
from tests.conftest import SENTENCES
from tests.objectives.cases import SETTINGS
from tests.objectives.test_battery import ready

LORA = {"lora_dropout": 0.2, "target_modules": "all-linear"}
TRAINED_LORA = {"r": 4, "lora_dropout": 0.2, "target_modules": ["q_proj", "v_proj", "down_proj"]}
ROWS = [{"query": text, "positive": text[5:] + " again", "negative": text[::-1]} for text in SENTENCES]


def values(folder: Path, place: Path, **stage: Any) -> dict[str, Any]:
    """A recipe of a contrastive stage with dropout."""
    rows = [{"query": text, "positive": text[5:], "negative": text[::-1]} for text in SENTENCES * 3]
    (place / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {"max_steps": 3, "learning_rate": 0.01, "use_cpu": True, **stage.pop("training", {})}
    encoder = {
        "model": str(folder),
        "pooling": {"mode": "mean"},
        "lora": TRAINED_LORA,
        "max_length": {"query": 32, "document": 32},
    }
    settings = {"objective": {"type": "contrastive"}, "batch": {"size": 4}, **stage}
    data = {"path": str(place / "pairs.jsonl")}
    return {"encoder": encoder, "stages": [{"name": "one", "data": data, "training": training, **settings}]}


def trained(folder: Path) -> dict[str, torch.Tensor]:
    """The trained weights of a run."""
    return load_file(folder / "one" / "adapters" / "0" / "adapter_model.safetensors")


def test_names_and_modules_stay(make_encoder):
    encoder = make_encoder("llama", lora=LORA)
    names, attributes = list(encoder.state_dict()), [set(vars(layer)) for layer in layers_of(encoder.backbone.inner)]
    with compiled_layers(encoder.backbone.inner):
        assert list(encoder.state_dict()) == names and not any("_orig_mod" in name for name in names)
        assert all(layer._compiled_call_impl is not None for layer in layers_of(encoder.backbone.inner))
    assert [set(vars(layer)) for layer in layers_of(encoder.backbone.inner)] == attributes


def test_refused_where_it_cannot_run(model_folder, tmp_path, monkeypatch):
    recipe = Recipe.from_values(values(model_folder("llama"), tmp_path, training={"torch_compile": True}))
    stage = recipe.stages[0]
    objective = assembly.objective(stage.objective)
    args = assembly.training_arguments(stage, objective, tmp_path / "out", seed=1)
    assert not args.torch_compile, "the Trainer would compile the whole step"
    check_launch(stage, args, sharded=False)
    with pytest.raises(ValueError, match="torch_compile is not supported under FSDP2"):
        check_launch(stage, args, sharded=True)

    def none() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", none)
    with pytest.raises(ValueError, match="needs a C\\+\\+ compiler"):
        check_launch(stage, args, sharded=False)


def loss_and_gradients(step, batch):
    step.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    loss = step(**batch, progress=torch.tensor(0.0))["loss"]
    loss.backward()
    found = {name: p.grad.clone() for name, p in step.named_parameters() if p.grad is not None}
    return loss.item(), found, torch.get_rng_state()


def assert_near(ours, wanted):
    assert ours[0] == pytest.approx(wanted[0], rel=1e-5)
    assert ours[1].keys() == wanted[1].keys()
    for name, grad in wanted[1].items():
        assert (ours[1][name] - grad).abs().max() <= 2e-5 * grad.abs().max() + 1e-8, name
    assert torch.equal(ours[2], wanted[2]), "other random numbers were drawn"


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_loss_and_gradients(attention, make_encoder):
    """With dropout; in one pass, with gradient caching, with activation checkpointing; for rows of several lengths."""
    encoder = make_encoder("llama", attention=attention, lora=LORA).train()
    objective = assembly.objective({"type": "contrastive"})
    objective.setup(encoder)
    steps = [TrainStep(encoder, objective), TrainStep(encoder, objective, Chunks(rows=3))]
    batches = [objective.collate(rows, encoder, seed=1) for rows in (ROWS[:4], ROWS, [ROWS[0], ROWS[-1]])]
    plain = [[loss_and_gradients(step, batch) for batch in batches] for step in steps]
    with compiled_layers(encoder.backbone.inner):
        for step, found in zip(steps, plain, strict=True):
            for batch, wanted in zip(batches, found, strict=True):
                assert_near(loss_and_gradients(step, batch), wanted)
        encoder.backbone.causal_lm.activation_checkpointing_enable()
        assert_near(loss_and_gradients(steps[0], batches[0]), plain[0][0])


@pytest.mark.slow
def test_a_replay_draws_the_same_numbers(make_encoder):
    """Gradient caching's first pass has no graph, and is other compiled code than the second."""
    encoder = make_encoder("llama", lora=LORA).train()
    tokens = encoder.tokens(SENTENCES[:5])
    with compiled_layers(encoder.backbone.inner):
        found = []
        for seed, graph in ((1, False), (1, True), (2, True)):
            torch.manual_seed(seed)
            with torch.set_grad_enabled(graph):
                found.append(encoder(tokens).detach())
    assert torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compression", "espresso", "bottleneck"])
def test_other_objectives(kind, make_encoder):
    """Those that switch the adapter off, read every layer, or mask."""
    encoder, objective, batch = ready(make_encoder, kind, SETTINGS[kind][0], dropout=True)
    step = TrainStep(encoder.train(), objective)
    wanted = loss_and_gradients(step, batch)
    with compiled_layers(encoder.backbone.inner):
        assert_near(loss_and_gradients(step, batch), wanted)


@pytest.mark.slow
def test_a_stage_is_saved_as_without(model_folder, tmp_path):
    asked = {name: values(model_folder("llama"), tmp_path, training=training) for name, training in {
        "plain": {"max_steps": 4, "save_steps": 2},
        "compiled": {"max_steps": 4, "save_steps": 2, "torch_compile": True},
    }.items()}  # fmt: skip
    for name, given in asked.items():
        train(Recipe.from_values(given), tmp_path / name)
    ours, wanted = trained(tmp_path / "compiled"), trained(tmp_path / "plain")
    assert ours.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-5)
    settings = [json.loads((tmp_path / name / "one" / "embrew.json").read_text()) for name in asked]
    assert settings[0]["active_adapter"] and settings[0] | {"checks": 0} == settings[1] | {"checks": 0}
