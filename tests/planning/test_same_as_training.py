"""The plan follows what `train` does: rows, steps, refusals, sharding, shapes and tokens."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from embrew.methods import OBJECTIVES
from embrew.methods.base import text_ids
from embrew.planning.devices import GPUS, Device
from embrew.planning.plan import plan_recipe
from embrew.planning.shapes import shape_of_model, shape_of_stage
from embrew.recipe import Recipe, build
from embrew.recipe.build.encoders import prepare_encoder, starting_encoder
from embrew.training.stages import train
from tests.conftest import SENTENCES, by_default
from tests.objectives.cases import BARE, ENCODERS, SETTINGS


def recipe_of(folder, path, rows, *, stage=None, objective="contrastive", data=None, **encoder) -> Recipe:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = {"pooling": {"mode": "mean"}, "max_length": {"query": 32, "document": 32}, **encoder}
    one = {"name": "one", "objective": {"type": objective}, "data": {"path": str(path), **(data or {})}}
    return Recipe.from_values({"encoder": {"model": str(folder), **encoder}, "stages": [{**one, **(stage or {})}]})


def pairs(folder, tmp_path, *, training=None, size=4, count=4, **changes) -> Recipe:
    rows = [{"query": text, "positive": text[5:], "negative": text[::-1]} for text in SENTENCES * count]
    stage = {"training": {"max_steps": 2, "learning_rate": 0.01, **(training or {})}, "batch": {"size": size}}
    return recipe_of(folder, tmp_path / "pairs.jsonl", rows, stage=stage, **{"lora": {"r": 4}, **changes})


@pytest.mark.parametrize("drop", by_default([True], [None, True]))
def test_steps_are_those_of_training(model_folder, tmp_path, drop):
    """11 rows, 2 in a batch, 4 batches in a step: 6 batches, 2 steps; without the last row, 5 batches, 2 steps."""
    training = {"num_train_epochs": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    training |= {"learning_rate": 0.01} | ({} if drop is None else {"dataloader_drop_last": drop})
    rows = [{"text": text[:40]} for text in (SENTENCES * 3)[:11]]
    kept = {"max_length": {"query": 16, "document": 16}, "pooling": {"mode": "last"}, "lora": {"r": 4}}
    stage = {"training": training}
    recipe = recipe_of(
        model_folder("llama"), tmp_path / "texts.jsonl", rows, stage=stage, objective="language_model", **kept
    )
    planned = plan_recipe(recipe, gpu="h100").stages[0].steps
    train(recipe, tmp_path / "run", verify="off")
    trained = json.loads((tmp_path / "run" / "run.json").read_text())["samples"]["one"]["steps"]
    assert planned == trained == 4


def test_an_order_of_several_data_sets_decides_the_steps(model_folder, tmp_path):
    """7 and 6 pairs in batches of 4 rows of one data set each: 12 rows are drawn, 3 steps."""
    recipe = pairs(model_folder("llama"), tmp_path, training={"max_steps": -1, "num_train_epochs": 1})
    rows = (tmp_path / "pairs.jsonl").read_text().splitlines(keepends=True)
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, part in zip(paths, (rows[:7], rows[7:13]), strict=True):
        path.write_text("".join(part))
    values = recipe.resolved()
    values["stages"][0]["data"] = [{"path": str(path)} for path in paths]
    assert plan_recipe(Recipe.from_values(values), gpu="h100").stages[0].steps == 3


def test_rows_that_do_not_fill_a_batch_are_refused_as_by_training(model_folder, tmp_path):
    recipe = pairs(model_folder("llama"), tmp_path, size=64)
    said = r"stage one: 20 rows, fewer than one batch of 64; lower batch\.size"
    for refusing in (lambda: plan_recipe(recipe, gpu="h100"), lambda: train(recipe, tmp_path / "run", verify="off")):
        with pytest.raises(ValueError, match=said):
            refusing()


def test_rows_that_are_too_long_for_the_data_set_are_left_out(model_folder, tmp_path):
    """Without `max_tokens` 20 rows, 10 steps of 2; with it, those whose query and positive are short."""
    recipe = pairs(model_folder("llama"), tmp_path, size=2, training={"max_steps": -1, "num_train_epochs": 1})
    assert plan_recipe(recipe, gpu="h100").stages[0].steps == 10
    encoder = build.encoder(recipe)
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    longest = [max(map(len, text_ids([row["query"], row["positive"]], encoder))) for row in rows]
    limit = sorted(longest)[len(longest) // 2]
    kept = sum(length <= limit for length in longest)
    values = recipe.resolved()
    values["stages"][0]["data"] = {"path": str(tmp_path / "pairs.jsonl"), "max_tokens": limit}
    assert 2 <= kept < 20
    assert plan_recipe(Recipe.from_values(values), gpu="h100").stages[0].steps == kept // 2


def test_4_bit_weights_are_never_sharded(model_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(GPUS, "h100", Device("h100", 1, 1.0, 1.0))

    def sharded(**encoder) -> bool:
        recipe = pairs(model_folder("llama"), tmp_path, **encoder)
        return plan_recipe(recipe, gpu="h100", processes=2).stages[0].sharded

    assert sharded() and not sharded(quantization="nf4")


def test_processes_on_a_cpu_share_its_memory(model_folder, tmp_path):
    recipe = pairs(model_folder("llama"), tmp_path)
    one, two = (plan_recipe(recipe, gpu="cpu", processes=count).stages[0].bytes["device"] for count in (1, 2))
    assert two == one // 2
    assert plan_recipe(recipe, gpu="h100", processes=2).stages[0].bytes["device"] == GPUS["h100"].memory


@pytest.mark.parametrize("how", ["LoRA", "full"])
def test_shapes_are_those_of_the_encoder_that_is_trained(how, model_folder, tmp_path):
    recipe = pairs(model_folder("llama"), tmp_path, **({} if how == "LoRA" else {"lora": None}))
    objective = build.objective(recipe.stages[0].objective)
    encoder = starting_encoder(recipe, 0, None, device=torch.device("cpu"))
    prepare_encoder(encoder, recipe, 0, objective)
    config = encoder.backbone.inner.config
    assert shape_of_stage(recipe, 0, config, "cpu") == shape_of_model(encoder.backbone.model, config)


@pytest.mark.parametrize("name", sorted({*OBJECTIVES} - {"embedding_distillation"}))  # which opens a teacher
def test_every_objective_trains_as_many_weights_as_planned(name, model_folder):
    """Of an untied head too, where its loss reads it."""
    encoder = {"memory_tokens": 0 if name in BARE else 2, "attention": "bidirectional", **ENCODERS.get(name, {})}
    encoder = {"template": "{text}" if name in BARE else "{instruction}{text}{memory}", **encoder, "max_length": None}
    encoder["demonstrations"] = dataclasses.asdict(encoder["demonstrations"]) if "demonstrations" in encoder else None
    encoder = {key: value for key, value in encoder.items() if value is not None}
    pooling = {"mode": "last" if name in ("epic", "icl") else "mean"}
    stage = {"name": "one", "objective": {"type": name, **SETTINGS[name][0]}, "data": {"path": "none"}}
    folder = str(model_folder("llama"))
    recipe = Recipe.from_values({"encoder": {"model": folder, "pooling": pooling, **encoder}, "stages": [stage]})
    opened = starting_encoder(recipe, 0, None, device=torch.device("cpu"))
    prepare_encoder(opened, recipe, 0, build.objective(recipe.stages[0].objective))
    trained = {id(p): p.numel() for p in opened.backbone.causal_lm.parameters() if p.requires_grad}
    learned = sum(tensor.numel() for tensor in opened.backbone.learned.values())
    planned = shape_of_stage(recipe, 0, opened.backbone.inner.config, "cpu")
    assert planned.trained == sum(trained.values()) + learned


def test_tokens_are_those_of_the_batches(tmp_path):
    """One positive of eight is nine times as long as the others; tokens are counted without padding."""
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
    rows = [{"query": words[i % 9], "positive": " ".join(words) * (9 if i % 8 == 0 else 1)} for i in range(256)]
    settings = {"training": {"max_steps": 1}, "batch": {"size": 128}}
    lengths = {"max_length": {"query": 128, "document": 128}}
    recipe = recipe_of("nano", tmp_path / "unequal.jsonl", rows, stage=settings, **lengths)
    encoder = build.encoder(recipe)
    count = sum(len(encoder.tokenizer(text).input_ids) for row in rows for text in row.values())
    plan = plan_recipe(recipe, gpu="h100").stages[0]
    assert plan.tokens == pytest.approx(count / 2, rel=0.02)
