"""`embrew plan`: parameters by hand, what fits and what helps, and the three lines before training."""

from __future__ import annotations

import json
import logging
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig
from typer.testing import CliRunner

from embrew.cli import app
from embrew.planning.devices import GPUS, Device, device, device_here
from embrew.planning.encoding import plan_encoding
from embrew.planning.plan import announce, plan_recipe, stage_rows
from embrew.planning.shapes import config_of, empty_model, shape_of_stage
from embrew.planning.stage import MOMENTS, Passes, plan_stage, rows_of
from embrew.recipe import Recipe, build, list_recipes
from embrew.training.stages import train
from tests.conftest import SENTENCES

KNOWN = {  # as the models' cards give them, or by hand below
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen1.5-0.5B": 463_987_712,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "google-bert/bert-base-uncased": 109_482_240 - 590_592,  # without its pooler
}


def recipe_of(model: str, **encoder) -> Recipe:
    return Recipe.from_values({"encoder": {"model": model, "pooling": {"mode": "last"}, **encoder}})


def test_parameters_of_public_models():
    """Llama-2-7B: 2 · V·H (embeddings, head) + L · (4 · H² + 3 · H·I + 2 · H) + H."""
    v, h, i, layers = 32_000, 4096, 11_008, 32
    assert KNOWN["meta-llama/Llama-2-7b-hf"] == 2 * v * h + layers * (4 * h * h + 3 * h * i + 2 * h) + h
    for name, count in KNOWN.items():
        model = empty_model(config_of(recipe_of(name))[0], torch.bfloat16)
        assert sum(p.numel() for p in model.parameters()) == count, name


def test_every_shipped_recipe_names_a_model_whose_shape_is_known():
    names = {Recipe.load(name).encoder.model for name in list_recipes()}
    assert len(names) > 12
    for name in names:
        assert config_of(recipe_of(name))[0].hidden_size > 0
    with pytest.raises(FileNotFoundError, match=r"none that embrew ships.*hf download some/model config.json"):
        config_of(recipe_of("some/model"))


def test_bytes_of_an_optimiser():
    """The state of a real AdamW after a step, but for one number per tensor that counts the steps."""
    weight = torch.nn.Parameter(torch.ones(100, 30))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    state = sum(t.nbytes for t in optimizer.state[weight].values() if t.numel() > 1)
    assert state == MOMENTS.get("adamw_torch_fused", 8.0) * weight.numel()


def test_memory_by_hand():
    """A LoRA of rank 4 on two layers; of a token, 8 states and 4 inner ones are kept in each, and in one more."""
    config = LlamaConfig(
        vocab_size=100, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    attention, linear = 16 * 16 * 2 + 16 * 8 * 2, 3 * 16 * 24
    values = recipe_of("nano").resolved()
    values["encoder"] |= {"lora": {"r": 4}, "dtype": "float32"}
    stage = {"name": "one", "objective": {"type": "contrastive"}, "data": {"path": "none"}, "batch": {"size": 8}}
    stage["training"] = {"max_steps": 3, "learning_rate": 0.01}
    recipe = Recipe.from_values({**values, "stages": [stage]})
    shape = shape_of_stage(recipe, 0, config, "cpu")
    lora = 2 * 4 * (2 * (16 + 16) + 2 * (16 + 8) + 2 * (16 + 24) + (24 + 16))
    base = 2 * 100 * 16 + 2 * (attention + linear + 2 * 16) + 16
    assert (shape.trained, shape.parameters, shape.weights) == (lora, base + lora, 4 * (base + lora))
    assert (shape.products, shape.attention, shape.trains_all) == (2 * (attention + linear), 16, False)
    assert shape.gated  # on a CPU, two inner states are kept
    assert shape.saved("bfloat16", "cpu") == 3 * (20 * 16 + 4 * 24)
    assert shape.saved("bfloat16", "cuda") == 3 * (16 * 16 + 8 * 24)
    passes = Passes(trained=100, frozen=10, length=20)

    def plan(processes=1, memory=10**12, **changes):
        changed = Recipe.from_values({**values, "stages": [{**stage, **changes}]})
        place = Device("gpu", memory, 1e9, 1e9)
        return plan_stage(changed, 0, shape, passes, place, count=80, processes=processes, measured=True)

    one, kept = plan(), 4 * (8 * 16 + 4 * 24)
    assert one.bytes["activations"] == 100 * 3 * kept
    assert (one.bytes["gradients"], one.bytes["optimizer"], one.bytes["process"]) == (4 * lora, 8 * lora, 1 << 30)
    parts = ("weights", "gradients", "optimizer", "activations", "process")
    assert one.bytes["peak"] == sum(one.bytes[key] for key in parts) and one.steps == 3
    assert plan(batch={"size": 8, "mini_batch_size": 2}).bytes["activations"] == 2 * 20 * 3 * kept
    assert plan(batch={"size": 8, "mini_batch_num_tokens": 50}).bytes["activations"] == 50 * 3 * kept
    recomputed = plan(training={**stage["training"], "activation_checkpointing": True})
    assert recomputed.bytes["activations"] == 100 * (4 * 2 * 16 + kept)
    forward = shape.operations(100, 20)
    assert forward == 100 * (2 * shape.products + 4 * 2 * 16 * 20)
    assert one.flop == 2 * forward + shape.operations(10, 20)
    assert recomputed.flop == one.flop + forward
    assert plan(processes=2).bytes["gradients"] == 8 * lora  # buckets of DistributedDataParallel
    shared = plan(processes=2, memory=one.bytes["peak"] // 2)
    assert shared.sharded and shared.bytes["weights"] == shape.weights // 2 and not shared.fits


def pairs(folder, tmp_path, **changes):
    rows = [{"query": text, "positive": text[5:], "negative": text[::-1]} for text in SENTENCES * 4]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = {"name": "one", "objective": {"type": "contrastive"}, "data": {"path": str(tmp_path / "pairs.jsonl")}}
    training = {"max_steps": 2, "learning_rate": 0.01, **changes.pop("training", {})}
    batch = changes.pop("batch", {"size": 4})
    return Recipe.from_values(
        {
            "encoder": {
                "model": str(folder),
                "pooling": {"mode": "mean"},
                "lora": {"r": 4},
                "max_length": {"query": 32, "document": 32},
                **changes,
            },
            "stages": [{**stage, "training": training, "batch": batch}],
        }
    )


def test_a_plan_that_does_not_fit_names_what_helps(model_folder, tmp_path, monkeypatch):
    recipe = pairs(model_folder("llama"), tmp_path, batch={"size": 16})
    plan = plan_recipe(recipe, gpu="h100").stages[0]
    assert plan.fits and plan.measured and plan.steps == 2 and plan.most > 16
    assert plan_recipe(recipe, gpu="h100", processes=2).stages[0].rows == 8
    small = Device("h100", plan.bytes["peak"] - plan.bytes["activations"] // 2, 1e12, 1e12)
    monkeypatch.setitem(GPUS, "h100", small)
    result = CliRunner().invoke(app, ["plan", "--json", *command(recipe, tmp_path)])
    (stage,) = json.loads(result.stdout)["stages"]
    assert not stage["fits"] and 0 < stage["most"] < 16
    change = next(one for one in stage["changes"] if "mini_batch_size" in one).split()[0]
    changed = CliRunner().invoke(app, ["plan", "--json", *command(recipe, tmp_path), change])
    (stage,) = json.loads(changed.stdout)["stages"]
    assert stage["fits"] and stage["changes"] == []


def test_a_frozen_copy_of_the_lm_is_counted(model_folder):
    """Compression that trains every weight but the head's, and memory: in float32; the copy in bfloat16."""
    folder = model_folder("llama")
    values = {
        "encoder": {
            "model": str(folder),
            "template": "{text}{memory}",
            "memory_tokens": 3,
            "pooling": {"mode": "mean", "over": "memory"},
        },
        "stages": [{"name": "one", "objective": {"type": "compression"}, "data": {"path": "none"}}],
    }
    (stage,) = plan_recipe(Recipe.from_values(values), gpu="h100").stages
    config = json.loads((folder / "config.json").read_text())
    head, memory_tokens = config["vocab_size"] * config["hidden_size"], 3 * config["hidden_size"]
    trained = stage.trained
    copied = trained - memory_tokens + head
    assert stage.parameters == trained + head + copied
    assert (stage.bytes["gradients"], stage.bytes["optimizer"]) == (4 * trained, 8 * trained)
    assert stage.bytes["weights"] == 4 * (trained + head) + 2 * copied


def test_pairs_have_a_negative_only_where_the_data_may_have_one():
    """The second stage of LBR has in-batch negatives alone; `columns` says so."""
    for name, negatives in (("lbr/paper-qwen2-1.5b", 0), ("epic/qwen3-0.6b", 1)):
        recipe = Recipe.load(
            name, ["encoder.model=nano", "encoder.dtype=float32", "encoder.max_length={query: 48, document: 48}"]
        )
        objective = build.objective(recipe.stages[-1].objective)
        encoder = build.encoder(recipe)
        rows, _, measured = stage_rows(recipe, len(recipe.stages) - 1, objective, encoder)
        assert not measured and {len(row) for row in rows["negatives"]} == {negatives}
        assert len(set(rows["query"])) == len(rows) > 1
        assert len({len(ids) for ids in encoder.tokenizer(list(rows["query"])).input_ids}) == 1


def command(recipe: Recipe, tmp_path) -> list[str]:
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    return [str(tmp_path / "recipe.yaml")]


def test_the_command_shows_one_column_per_stage_and_says_what_it_assumed(model_folder, tmp_path):
    recipe = pairs(model_folder("llama"), tmp_path)
    (tmp_path / "pairs.jsonl").unlink()
    result = CliRunner().invoke(app, ["plan", *command(recipe, tmp_path), "--gpu", "4090"])
    assert result.exit_code == 0, result.output
    assert "computed, not measured" in result.stdout and "the data is not here" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()[1:] if not line.startswith("note")) <= 80
    none = CliRunner().invoke(app, ["plan", "baselines/mean"])
    assert none.exit_code == 1 and "no stages" in none.stderr


def test_training_says_what_a_stage_takes(model_folder, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    recipe, sharded = pairs(model_folder("llama"), tmp_path), []

    def announced(*given):
        sharded.append(given[5:])
        announce(recipe, *given)

    train(recipe, tmp_path / "a", verify="off", announce=announced)
    assert sharded == [(False,)]
    (line,) = [record.message for record in caplog.records if "plan: " in record.message]
    assert "one  plan: 2 steps of about" in line and "GB on cpu: fits" in line

    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("embrew.planning.plan.plan_stage", broken)
    caplog.clear()
    train(recipe, tmp_path / "b", verify="off", announce=partial(announce, recipe))  # goes on, and says so
    warned = [record.message for record in caplog.records if "no plan" in record.message]
    assert warned == ["one  no plan of its memory and time (ZeroDivisionError: )"]
    weights = [(tmp_path / run / "one" / "adapters/0/adapter_model.safetensors").read_bytes() for run in "ab"]
    assert weights[0] == weights[1], "the plan changed the training"


def test_encoding_by_hand(model_folder):
    """10⁹ vectors of 1024 dimensions; layers of Qwen3-0.6B: two operations per weight and token, and attention."""
    plan = plan_encoding("Qwen/Qwen3-0.6B", texts=1e9, tokens=180, gpu="h100", devices=64, utilization=0.5)
    layer = 1024 * 128 * (16 + 2 * 8 + 16) + 3 * 1024 * 3072
    by_hand = 28 * (2 * layer * 180 + 4 * 16 * 128 * 180 * 180)
    assert plan["flop_per_text"] == pytest.approx(by_hand, rel=1e-6)
    assert plan["hours"] == pytest.approx(1e9 * by_hand / (989e12 * 0.5 * 64) / 3600)
    assert plan["bytes"][1024] == {"float32": 10**9 * 4112, "int8": 10**9 * 1040, "binary": 10**9 * 144}
    assert plan["dimensions"] == [1024, 256] and plan["bytes"][256]["binary"] == 10**9 * 48
    assert plan["shards"] == 30_518
    assert plan["lost_worker_seconds"] == pytest.approx(32_768 * by_hand / (989e12 * 0.5))
    result = CliRunner().invoke(app, ["plan", str(model_folder("llama")), "--texts", "1000", "--json"])
    assert json.loads(result.stdout)["shards"] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["nano", "--truncate-dim", "9"],
            "--truncate-dim is of the encoding of a corpus; give --texts",
        ),
        (["nano", "a=b", "--texts", "9"], "a=b: the encoding of a corpus has no settings"),
        (["nano", "--texts", "inf"], "texts=inf; give a number from 1 on, for example 1e9"),
        (
            ["nano", "--texts", "9", "--truncate-dim", "257"],
            "truncate_dim=257; the vectors of nano have 256 dimensions",
        ),
        (
            ["/no/such/model", "--texts", "9"],
            "no folder '/no/such/model'; encoder.model is a folder or the id of a model",
        ),
    ],
)
def test_what_cannot_be_encoded_is_an_error_in_one_line(options, said):
    result = CliRunner().invoke(app, ["plan", *options])
    assert result.exit_code == 1 and result.stderr.startswith(f"error: {said}") and not result.stdout


def test_devices(monkeypatch):
    assert device("cpu").kind == "cpu" and device("cpu").speed("float32") > 1e8
    for name, known in (
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", math.nan),
        ("NVIDIA GeForce RTX 3060", 25.5e12),
        ("Tesla T4", math.nan),
    ):
        found = SimpleNamespace(name=name, total_memory=16 << 30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, found=found: found)
        here = device_here(torch.device("cuda"))
        assert (here.name, here.memory, here.kind) == (name, 16 << 30, "cuda")
        assert here.speed("bfloat16") == pytest.approx(known, nan_ok=True)
    with pytest.raises(ValueError, match="choose from h200, h100, a100-80, a100-40, l40s, 4090, a10, l4, 3060, cpu"):
        device("tpu")
    with pytest.raises(ValueError, match=r"batch.size=64 is not divisible by 3 devices"):
        rows_of(Recipe.load("baselines/nli-nano"), 0, 3)
