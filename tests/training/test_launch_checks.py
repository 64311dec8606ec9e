"""What does not go together with a way of launching is refused by name, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset

from embrew.recipe import Recipe, StageConfig, build
from embrew.training import sharding
from embrew.training.sharding import check_launch, sharding_requested
from embrew.training.stages import train
from embrew.training.step import TrainStep
from embrew.training.trainer import StageTrainer

CACHED = {"size": 4, "mini_batch_size": 2}


def stage_of(kind: str, **settings: Any) -> StageConfig:
    values = {"name": "one", "objective": {"type": kind}, "data": {"path": "none"}, **settings}
    return StageConfig.model_validate(values)


def check(stage: StageConfig, args: Any, *, sharded: bool) -> None:
    check_launch(Recipe.load("baselines/nli-nano").model_copy(update={"stages": [stage]}), 0, args, sharded=sharded)


def arguments(stage: StageConfig) -> tuple[Any, Any]:
    on_cpu = stage.model_copy(update={"training": {"use_cpu": True, **stage.training}})
    objective = build.objective(stage.objective)
    return objective, build.training_arguments(on_cpu, objective, Path("unused"), seed=1)


def test_fp16_under_fsdp2():
    stage = stage_of("contrastive")
    _, args = arguments(stage)
    check(stage, args, sharded=True)
    args.fp16 = True
    with pytest.raises(ValueError, match="fp16 is not supported under FSDP2.*use bf16"):
        check(stage, args, sharded=True)


@pytest.mark.parametrize(
    ("zero3", "batch", "words"),
    [
        (False, {"size": 4}, None),
        (False, CACHED, "gradient caching is not supported under DeepSpeed.*or use FSDP2"),
        (True, {"size": 4}, "ZeRO stage 3 is not supported.*use FSDP2"),
    ],
)
def test_deepspeed(zero3, batch, words):
    stage = stage_of("contrastive", batch=batch)
    _, args = arguments(stage)
    args.deepspeed_plugin = SimpleNamespace(hf_ds_config=SimpleNamespace(is_zero3=lambda: zero3))
    if words is None:
        check(stage, args, sharded=False)
    else:
        with pytest.raises(ValueError, match=words):
            check(stage, args, sharded=False)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"fsdp": True}, "belongs to the launcher, not to a recipe"),
        ({"deepspeed": "zero.json"}, "belongs to the launcher, not to a recipe"),
        ({"auto_find_batch_size": True}, "would change the batch size"),
    ],
)
def test_in_a_recipe(training, words):
    with pytest.raises(ValueError, match=words):
        arguments(stage_of("contrastive", training=training))


@pytest.mark.parametrize("kind", ["compression", "mntp"])
def test_gradient_caching_of_objectives_that_look_at_tokens(kind):
    with pytest.raises(ValueError, match="batch.size is the global batch of a contrastive objective"):
        arguments(stage_of(kind, batch=CACHED))


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FSDP_VERSION": "1"}, "requests FSDP 1.*set fsdp_version: 2"),
        ({"FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params"),
    ],
)
def test_other_ways_of_sharding(variables, words, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=words):
        train(Recipe.load("baselines/nli-nano"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_launchers_word_is_heard_by_embrew_alone(monkeypatch):
    """Accelerate reads the same variable, and would wrap the step too."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    with sharding_requested() as sharded:
        assert sharded
        with sharding_requested() as again:
            assert not again, "the variable is gone meanwhile"
    with sharding_requested() as sharded:
        assert sharded, "and is back after it"
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    with sharding_requested() as sharded:
        assert not sharded


def test_trained_weights_that_cannot_be_cut(make_encoder):
    encoder = make_encoder()
    encoder.backbone.train_all()
    encoder.backbone.causal_lm.to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"several dtypes \(bfloat16, float32\).*encoder.dtype: float32"):
        sharding.shard(encoder, torch.device("cpu"))


def test_one_process_uses_one_gpu(make_encoder, caplog):
    """Where it sees several, the Trainer would cut batches up for DataParallel."""
    objective, args = arguments(stage_of("contrastive", batch={"size": 4}))
    assert args.n_gpu <= 1
    args._n_gpu = 2
    rows = Dataset.from_list([{"query": "a", "positive": "b"}] * 4)
    trainer = StageTrainer(TrainStep(make_encoder(lora={}), objective), args, rows, "one")
    assert args.n_gpu == 1 and trainer._train_batch_size == 4
    assert "several GPUs are visible, and one is used" in caplog.text
