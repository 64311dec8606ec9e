"""The shipped sweeps: every row goes with its recipe, and trains two steps on nano."""

import pytest

from embrew.recipe import Recipe
from embrew.sweep.rows import list_sweeps, read_sweep
from embrew.training.stages import train
from tests.conftest import by_default
from tests.recipes.test_recipes import files, shrunk

__all__ = ["files"]
SWEEPS = {  # the recipes that its head names
    "autoregembed/ablations": ["autoregembed/paper-llama2-7b"],
    "autoregembed/contrastive": ["baselines/contrastive-llama2-7b"],
    "epic/ablations": ["epic/paper-mistral-7b"],
    "ese/ablations": ["ese/bge-base"],
    "ese/mrl": ["ese/bge-base"],
    "lbr/ratio": ["lbr/medical-nano", "lbr/paper-qwen2-1.5b"],
    "lbr/share": ["lbr/medical-nano"],
    "lbr/share-100k": ["lbr/paper-qwen2-1.5b"],
    "lbr/stages": ["lbr/medical-nano", "lbr/paper-qwen2-1.5b", "lbr/paper-qwen2.5-1.5b"],
    "llm2comp/analysis": ["llm2comp/paper-llama2-7b"],
    "llm2comp/pretexts": ["llm2comp/paper-llama2-7b"],
    "llm2comp/tokens": ["llm2comp/paper-llama2-7b"],
}
NARROW = {"dims": [256, 64], "compression_size": 64}  # nano has 256 dimensions


def test_every_shipped_sweep_is_here():
    assert list_sweeps() == list(SWEEPS)


@pytest.mark.parametrize("name", by_default(["ese/mrl", "llm2comp/tokens"], SWEEPS))
def test_each_is_of_the_recipes_that_its_head_names(name):
    for recipe in SWEEPS[name]:
        assert len(read_sweep(name, recipe).rows) >= 4, name


def test_the_shares_are_of_one_budget():
    for row in read_sweep("lbr/share", "lbr/medical-nano").rows:  # x of it is read in generative learning
        (recipe,) = row.recipes.values()
        read = {
            stage.name: stage.training["max_steps"]
            * (stage.batch.size if stage.batch else stage.training["per_device_train_batch_size"])
            for stage in recipe.stages
        }
        assert sum(read.values()) == 12_800, row.name
        assert read.get("learn", 0) / 12_800 == pytest.approx(row.x or 0.0)
    for row in read_sweep("lbr/share-100k", "lbr/paper-qwen2-1.5b").rows:
        (recipe,) = row.recipes.values()
        rows = {stage.name: stage.datasets[0].max_rows or 0 for stage in recipe.stages}
        assert sum(rows.values()) == 100_000, row.name
        assert rows.get("learn", 0) / 100_000 == pytest.approx(row.x or 0.0)


def test_the_fair_baselines_are_those_of_the_paper():
    """*Following the Autoregressive Nature of LLM Embeddings*, appendix A and table 1."""
    found = {}
    for row in read_sweep("autoregembed/contrastive", "baselines/contrastive-llama2-7b").rows:
        (recipe,) = row.recipes.values()
        (stage,) = recipe.stages
        assert stage.batch is not None and stage.training["learning_rate"] == 1e-4
        in_batch = stage.objective.get("in_batch_negatives", True)
        found[row.name] = recipe.encoder.pooling.mode, in_batch, stage.batch.size, stage.datasets[0].max_rows
    assert found == {
        "L": ("last", False, 32, 50_000),
        "inbatch-L": ("last", True, 512, 50_000),
        "M": ("mean", False, 32, 50_000),
        "inbatch-M": ("mean", True, 512, 50_000),
        "inbatch-M-275k": ("mean", True, 512, 274_951),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_every_row_trains_on_nano(name, files, tmp_path):
    """Two steps per stage, with everything but model, data and sizes as shipped."""
    for row in read_sweep(name, SWEEPS[name][-1]).rows:
        values = next(iter(row.recipes.values())).resolved()
        for stage in values["stages"]:
            stage["objective"] |= {key: value for key, value in NARROW.items() if stage["objective"].get(key)}
        small = shrunk(Recipe.from_values(values), "nano", files)
        encoder = train(small, tmp_path / row.name, verify="off")
        assert encoder.steps > 0, row.name
