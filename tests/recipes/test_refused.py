"""What `embrew recipe check` refuses: every wrong value by its key, and every key of other libraries by a decision."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from fnmatch import fnmatch
from functools import cache
from typing import Any

import pytest
from peft import LoraConfig
from typer.testing import CliRunner

from embrew.cli import app
from embrew.recipe import Recipe, build, read_recipe
from embrew.recipe.build import checking, stages
from embrew.recipe.encoder import LORA_REFUSED
from embrew.recipe.overrides import apply_overrides
from embrew.recipe.stage import TRAINING_REFUSED
from embrew.settings.validation import refusal
from embrew.settings.yaml_files import parse_yaml
from embrew.training.stages import train
from tests.recipes.wrong import NANO, OVERRIDES


@cache
def written(name: str) -> dict[str, Any]:
    return parse_yaml(read_recipe(name)[0])


def made(name: str, *overrides: str) -> Recipe:
    """The shipped recipe with overrides, as `Recipe.load` makes it, but parsed once."""
    return Recipe.from_values(apply_overrides(written(name), overrides), overrides=overrides)


def check(name: str, *overrides: str, here: bool = False) -> None:
    build.check_recipe(made(name, *overrides), here=here)


def test_there_are_many_of_them():
    assert len({(name, override) for name, override, _ in OVERRIDES}) == len(OVERRIDES) == 67
    for name in {name for name, _, _ in OVERRIDES}:
        check(name)


@pytest.mark.parametrize(("name", "override", "words"), OVERRIDES, ids=[override for _, override, _ in OVERRIDES])
def test_one_wrong_value(name, override, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        check(name, override)
    said = str(error.value)
    assert len(said.splitlines()) == 1 and "pydantic" not in said
    key = override.partition("=")[0].rpartition(".")[2]
    assert key in said


def test_the_command_says_it_in_one_line(tmp_path):
    wrong = ["stages.supervised.objective.temperature=0", "evaluation=null"]
    for arguments in (["recipe", "check", NANO], ["train", NANO, "--output", str(tmp_path / "run")]):
        result = CliRunner().invoke(app, [*arguments, *wrong])
        assert result.exit_code == 1 and len(result.stderr.splitlines()) <= 2
        allowed = "allowed: greater than or equal to 0.0001"
        assert f"error: stages.supervised.objective.temperature=0; {allowed}" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("refused", "allowed", "kind", "count"),
    [
        (TRAINING_REFUSED, stages.TRAINING, stages.StageArguments, 115),
        (LORA_REFUSED, checking.LORA, LoraConfig, 42),
    ],
)
def test_every_field_is_allowed_or_refused(refused, allowed, kind, count):
    names = {field.name for field in fields(kind)}
    left_out = {name for name in names if refusal(name, refused)}
    assert allowed.model_fields.keys() == names - left_out and len(names) == count
    assert all(any(fnmatch(name, pattern) for name in names) for pattern in refused)


def test_an_unknown_key_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown key stages\.compress\.training\.warmup_step; .*'warmup_steps'\?"):
        check(NANO, "stages.0.training.warmup_step=3")


@pytest.mark.parametrize("key", ["push_to_hub", "fsdp", "data_seed"])
def test_a_refused_key_is_refused_with_its_reason(key):
    words = refusal(key, TRAINING_REFUSED)
    assert words is not None
    with pytest.raises(ValueError, match=re.escape(f" stages.0.training.{key} {words}")):
        made(NANO, f"stages.0.training.{key}=secret")


def test_the_schema_knows_the_keys_that_are_allowed():
    schema = json.loads(CliRunner().invoke(app, ["recipe", "schema"]).stdout)
    stage = schema["$defs"]["StageConfig"]["properties"]["training"]
    assert stage["properties"].keys() == stages.TRAINING.model_fields.keys() and stage["additionalProperties"] is False
    encoder = schema["$defs"]["EncoderConfig"]["properties"]["lora"]
    assert encoder["anyOf"][0]["properties"].keys() == checking.LORA.model_fields.keys()


AT_THE_EDGE: dict[str, list[Any]] = {
    "max_steps": [-1, 1],
    "num_train_epochs": [0.001, 1],
    "learning_rate": [1e-12, 1],
    "warmup_steps": [0, 0.5, 3],
    "weight_decay": [0, 1.5],
    "max_grad_norm": [0],
    "adam_beta1": [0],
    "adam_beta2": [0.0, 0.9999],
    "logging_steps": [1, 0.001, 1.0],
    "save_steps": [0.5, 1],
    "report_to": ["none", "wandb", ["wandb", "mlflow"], None],
    "optim": ["adamw_torch", "sgd", "adafactor", "adagrad", "rmsprop", "adamw_8bit"],
    "lr_scheduler_type": ["linear", "cosine", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"],
    "activation_checkpointing_kwargs": [None, {}, {"use_reentrant": False, "every_n_layers": 2}],
}


@pytest.mark.parametrize(("key", "values"), AT_THE_EDGE.items(), ids=AT_THE_EDGE)
def test_what_is_allowed_passes(key, values):
    whole = made(NANO).resolved()
    compress = whole["stages"][0]
    for value in values:
        kept = {k: v for k, v in compress["training"].items() if not k.startswith(("lr_", "warmup"))}
        first = {**compress, "training": {**kept, key: value}}
        build.check_recipe(Recipe.from_values({**whole, "stages": [first]}))


def test_a_schedule_that_never_leaves_0_is_refused():
    with pytest.raises(ValueError, match="the learning rate is 0 at every step; lower warmup_steps"):
        check(NANO, "stages.compress.training.max_steps=1", "stages.compress.training.warmup_steps=4")
    with pytest.raises(ValueError, match="give a learning rate of -"):
        check(
            NANO,
            "stages.compress.training.lr_scheduler_type=polynomial",
            "stages.compress.training.lr_scheduler_kwargs={lr_end: -1}",
        )


def test_what_is_missing_here_is_refused_where_it_is_trained():
    check(NANO, "stages.compress.training.optim=galore_adamw", "stages.compress.training.optim_target_modules=[attn]")
    with pytest.raises(ValueError, match="training.optim='galore_adamw': .*install"):
        check(
            NANO,
            "stages.compress.training.optim=galore_adamw",
            "stages.compress.training.optim_target_modules=[attn]",
            here=True,
        )


EDGE: dict[str, Any] = {
    "objective": {"temperature": 0.01, "false_negative_margin": 2, "false_negative_warmup": 0},
    "training": {"weight_decay": 1.5, "max_grad_norm": 0, "adam_beta1": 0, "warmup_steps": 0, "learning_rate": 1e-12},
    "lora": {"r": 1, "lora_alpha": 0.001, "lora_dropout": 0, "target_modules": ".*q_proj"},
}


def test_training_starts_at_the_edge_of_what_is_allowed(model_folder, tmp_path):
    rows = "".join(f'{{"query": "what is {i}", "positive": "number {i}"}}\n' for i in range(8))
    (tmp_path / "rows.jsonl").write_text(rows)
    once = {"max_steps": 1, "use_cpu": True, "save_strategy": "no", **EDGE["training"]}
    encoder = {"model": str(model_folder("llama")), "pooling": {"mode": "mean"}, "lora": EDGE["lora"]}
    stage = {
        "name": "a",
        "objective": {"type": "contrastive", **EDGE["objective"]},
        "data": {"path": str(tmp_path / "rows.jsonl")},
        "batch": {"size": 2},
        "training": once,
    }
    recipe = Recipe.from_values(
        {"encoder": {**encoder, "max_length": {"query": 16, "document": 16}}, "stages": [stage]}
    )
    train(recipe, tmp_path / "run", verify="off")
    assert (tmp_path / "run" / "a" / "embrew.json").is_file()
