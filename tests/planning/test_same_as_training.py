"""The plan follows what `train` does: rows, steps, refusals, sharding, memory of each process, recomputation."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from embrew import build
from embrew.cli import app
from embrew.objectives.targets import text_ids
from embrew.planning import announcing
from embrew.planning.advice import advice
from embrew.planning.devices import GPUS, Device
from embrew.planning.memory import Static
from embrew.planning.plan import plan_recipe
from embrew.planning.run import StageRun
from embrew.planning.stage import Stage
from embrew.recipe import Recipe
from embrew.training.stage_start import prepare_encoder, starting_encoder
from embrew.training.stages import Run, train
from tests.conftest import SENTENCES


def recipe_of(folder, path, rows, *, stage=None, objective="contrastive", data=None, **encoder) -> Recipe:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = {"pooling": {"mode": "mean"}, "max_length": {"query": 32, "document": 32}, **encoder}
    one = {"name": "one", "objective": {"type": objective}, "data": {"path": str(path), **(data or {})}}
    return Recipe.from_values({"encoder": {"model": str(folder), **encoder}, "stages": [{**one, **(stage or {})}]})


def pairs(folder, tmp_path, *, training=None, size=4, count=4, **changes) -> Recipe:
    rows = [{"query": text, "positive": text[5:], "negative": text[::-1]} for text in SENTENCES * count]
    stage = {"training": {"max_steps": 2, "learning_rate": 0.01, **(training or {})}, "batch": {"size": size}}
    return recipe_of(folder, tmp_path / "pairs.jsonl", rows, stage=stage, **{"lora": {"r": 4}, **changes})


def on(monkeypatch, memory: int) -> None:
    monkeypatch.setitem(GPUS, "h100", Device("h100", memory, 1e12, 1e12))


@pytest.mark.parametrize("drop", [None, True])
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
    planned = plan_recipe(recipe, gpu="h100").stages[0].run.steps
    train(recipe, tmp_path / "run", verify="off")
    trained = json.loads((tmp_path / "run" / "run.json").read_text())["samples"]["one"]["steps"]
    assert planned == trained == 4


def test_steps_by_hand(model_folder, tmp_path):
    """Texts: 11 rows on 2 devices, 2 each: 3 batches, or 2 full ones; one epoch, 2 batches in a step."""
    training = {"num_train_epochs": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    rows = [{"text": text} for text in (SENTENCES * 3)[:11]]

    def steps(**more):
        made = recipe_of("nano", tmp_path / "t.jsonl", rows, stage={"training": {**training, **more}},
                         objective="language_model", pooling={"mode": "last"})  # fmt: skip
        return StageRun.of(made, 0, count=11, processes=2, kind="cuda").steps

    assert (steps(), steps(dataloader_drop_last=True), steps(max_steps=7)) == (2, 1, 7)
    assert steps(num_train_epochs=1.2) == math.ceil(1.2 * 2)


def test_an_order_of_several_data_sets_decides_the_steps(model_folder, tmp_path):
    """7 and 6 pairs in batches of 4 rows of one data set each: 12 rows are drawn, 3 steps."""
    recipe = pairs(model_folder("llama"), tmp_path, training={"max_steps": -1, "num_train_epochs": 1})
    rows = (tmp_path / "pairs.jsonl").read_text().splitlines(keepends=True)
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, part in zip(paths, (rows[:7], rows[7:13]), strict=True):
        path.write_text("".join(part))
    values = recipe.resolved()
    values["stages"][0]["data"] = [{"path": str(path)} for path in paths]
    assert plan_recipe(Recipe.from_values(values), gpu="h100").stages[0].run.steps == 3


def test_rows_that_do_not_fill_a_batch_are_refused_as_by_training(model_folder, tmp_path):
    recipe = pairs(model_folder("llama"), tmp_path, size=64)
    said = r"stage one: 20 rows, fewer than one batch of 64; lower batch\.size"
    for refusing in (lambda: plan_recipe(recipe, gpu="h100"), lambda: train(recipe, tmp_path / "run", verify="off")):
        with pytest.raises(ValueError, match=said):
            refusing()


def test_rows_that_are_too_long_for_the_data_set_are_left_out(model_folder, tmp_path):
    """Without `max_tokens` 20 rows, 10 steps of 2; with it, those whose query and positive are short."""
    recipe = pairs(model_folder("llama"), tmp_path, size=2, training={"max_steps": -1, "num_train_epochs": 1})
    assert plan_recipe(recipe, gpu="h100").stages[0].run.steps == 10
    encoder = build.encoder(recipe)
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    longest = [max(map(len, text_ids([row["query"], row["positive"]], encoder))) for row in rows]
    limit = sorted(longest)[len(longest) // 2]
    kept = sum(length <= limit for length in longest)
    values = recipe.resolved()
    values["stages"][0]["data"] = {"path": str(tmp_path / "pairs.jsonl"), "max_tokens": limit}
    assert 2 <= kept < 20
    assert plan_recipe(Recipe.from_values(values), gpu="h100").stages[0].run.steps == kept // 2


@pytest.fixture
def full(model_folder, tmp_path):
    """A recipe that trains every weight, its encoder, objective and rows."""
    recipe = pairs(model_folder("llama"), tmp_path, lora=None)
    objective = build.objective(recipe.stages[0].objective)
    encoder = starting_encoder(recipe, 0, None, device=torch.device("cpu"))
    prepare_encoder(encoder, recipe, 0, objective)
    (rows,) = build.datasets(recipe.stages[0], objective, encoder)
    return recipe, encoder, objective, rows


def test_the_announced_memory_is_that_of_the_run(full, monkeypatch, caplog):
    """Between the peaks of whole and of sharded weights, whole ones do not fit; sharded ones are announced as such."""
    recipe, encoder, objective, rows = full
    run = StageRun.of(recipe, 0, count=len(rows), processes=2, kind="cpu")
    place = Device("cpu", 10**12, 1e9, 1e9, kind="cpu")
    whole, shares = (
        Stage(encoder, objective, rows, None, run, place, taken=0, sharded=sharded)
        .plan(utilization=0.4, measured=True, search=False)
        .memory
        for sharded in (False, True)
    )
    assert (whole.sharded, shares.sharded) == (False, True) and shares.weights == whole.weights // 2
    monkeypatch.setattr(announcing, "world_size", lambda: 2)
    monkeypatch.setattr(announcing, "taken_by_process", lambda: Static.of(encoder, objective).weights)
    caplog.set_level(logging.INFO)

    def said(memory: int, sharded: bool) -> str:
        monkeypatch.setattr(
            announcing, "device_here", lambda _: Device("cpu", 2 * memory, 1e9, 1e9, kind="cpu")
        )  # of two processes
        caplog.clear()
        announcing.Announcer(recipe)(0, encoder, objective, rows, None, False, sharded)
        return "\n".join(record.message for record in caplog.records if "plan: " in record.message)

    assert shares.peak < whole.peak
    between = (shares.peak + whole.peak) // 2
    assert "DOES NOT FIT" in said(between, False) and "DOES NOT FIT" not in said(between, True)
    assert f"optimiser {shares.optimizer / 1e9:.2f} GB" in said(10**12, True)
    assert "DOES NOT FIT" in said(whole.peak - 1, False) and "DOES NOT FIT" not in said(whole.peak, False)


def test_training_announces_whether_its_weights_are_sharded(full, tmp_path):
    recipe, *_ = full
    found = []
    run = Run(recipe, tmp_path / "run", resume=False, evaluate=None, verify="off")
    run.announce = lambda *given: found.append(given[5:])
    run.all_stages()
    assert found == [(False, False)]


def test_4_bit_weights_are_never_sharded(full, monkeypatch):
    from embrew.planning import stage

    recipe, encoder, objective, rows = full
    run = StageRun.of(recipe, 0, count=len(rows), processes=2, kind="cuda")

    def sharded() -> bool:
        return Stage(encoder, objective, rows, None, run, Device("h100", 1, 1.0, 1.0)).plan(
            utilization=0.4, measured=True, search=False
        ).memory.sharded  # fmt: skip

    assert sharded()
    monkeypatch.setattr(stage, "quantized_layers", lambda backbone: {"one": backbone})
    assert not sharded()


def test_processes_on_a_cpu_share_its_memory(model_folder, tmp_path):
    recipe = pairs(model_folder("llama"), tmp_path)
    one, two = (plan_recipe(recipe, gpu="cpu", processes=count).stages[0].free for count in (1, 2))
    assert two == one // 2
    assert plan_recipe(recipe, gpu="h100", processes=2).stages[0].free == GPUS["h100"].memory


def test_automatic_checkpointing_is_on_only_where_memory_lacks(model_folder, tmp_path, monkeypatch):
    plans = {}
    for value in (False, "auto", True):
        recipe = pairs(model_folder("llama"), tmp_path, training={"activation_checkpointing": value})
        plans[value] = plan_recipe(recipe, gpu="h100").stages[0]
    assert plans["auto"].memory == plans[False].memory and plans[True].memory.peak < plans[False].memory.peak
    assert plans["auto"].flop == plans[False].flop < plans[True].flop
    on(monkeypatch, (plans[True].memory.peak + plans[False].memory.peak) // 2)
    recipe = pairs(model_folder("llama"), tmp_path, training={"activation_checkpointing": "auto"})
    assert plan_recipe(recipe, gpu="h100").stages[0].memory == plans[True].memory
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "recipe.yaml"), "--json"])
    assert json.loads(result.stdout)["stages"][0]["activation_checkpointing"] is True


def test_what_is_proposed_is_accepted(full, model_folder, tmp_path, monkeypatch):
    """A third device does not divide a batch of 4; a DoRA cannot be merged beside 4-bit weights."""
    recipe, *_ = full
    plan = plan_recipe(recipe, gpu="h100").stages[0]
    memory = replace(plan.memory, activations=0)
    share = memory.weights + memory.gradients + memory.optimizer
    plan = replace(plan, memory=memory, free=memory.taken + int(share / 2.5))
    proposed = advice(recipe, 0, plan)
    assert any(one.startswith("--gpus 4,") for one in proposed)
    for settings, offered in (({"r": 4}, True), ({"r": 4, "use_dora": True}, False)):
        adapted = pairs(model_folder("llama"), tmp_path, lora=settings)
        on(monkeypatch, 1)
        proposed = advice(adapted, 0, plan_recipe(adapted, gpu="h100").stages[0])
        assert any("quantization=nf4" in one for one in proposed) is offered


def test_batches_of_unequal_texts_are_counted_whole(tmp_path, monkeypatch):
    """One positive of eight is nine times as long as the others; a line through fewer of 128 rows is another plan."""
    from embrew.planning import stage

    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
    rows = [{"query": words[i % 9], "positive": " ".join(words) * (9 if i % 8 == 0 else 1)} for i in range(256)]
    settings = {"training": {"max_steps": 1}, "batch": {"size": 128}}
    lengths = {"max_length": {"query": 128, "document": 128}}
    recipe = recipe_of("nano", tmp_path / "unequal.jsonl", rows, stage=settings, **lengths)
    counted = []
    cost = stage.step_cost
    monkeypatch.setattr(stage, "step_cost", lambda *given: counted.append(given) or cost(*given))
    plan = plan_recipe(recipe, gpu="h100").stages[0]
    (encoder, objective, batch, how), *_ = counted
    assert plan.memory.gradients == 4 * plan.static.trained
    real = cost(encoder, objective, batch, how)
    step = 1.05 * max(real.forward, real.backward)  # 5 % of fragments
    assert plan.memory.activations == pytest.approx(step - plan.memory.gradients, rel=1e-6)


def test_settings_that_a_plan_does_not_follow_are_noted(model_folder, tmp_path):
    folder = model_folder("llama")
    assert not any("not counted" in note for note in plan_recipe(pairs(folder, tmp_path), gpu="h100").notes)
    recipe = pairs(folder, tmp_path, attn_implementation="eager", training={"torch_compile": True})
    notes = [note for note in plan_recipe(recipe, gpu="h100").notes if "not counted" in note]
    assert len(notes) == 2 and "attn_implementation=eager" in notes[0] and notes[1].startswith("one: torch_compile")
