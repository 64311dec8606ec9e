"""The card of a trained encoder: readable by the Hub's own reader, true to the run, silent about the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from embrew.encoder import Encoder
from embrew.evaluation.dev import dev_sets
from embrew.export.exporting import export_encoder
from embrew.merging import merge_encoder
from embrew.recipe import Recipe
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.training.test_stages import values

__all__ = ["values"]  # the fixture


@pytest.fixture
def recipe(values, tmp_path) -> Recipe:
    """Two stages, a dev set that shares a text with the training data, and a guard set that does not."""
    for name, texts in (("near", [SENTENCES[0][:40], "another text", "a third"]), ("far", ["x", "y z", "w"])):
        (tmp_path / name).mkdir()
        rows = [{"sentence1": text, "sentence2": "b" * (i + 1), "score": i} for i, text in enumerate(texts)]
        (tmp_path / name / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values["stages"] = [values["stages"][0], {**values["stages"][2], "adapter": "continue"}]
    values["evaluation"] = {
        "dev": [str(tmp_path / "near")], "guard": [str(tmp_path / "far")], "every": 2, "stages": ["supervised"],
    }  # fmt: skip
    return Recipe.from_values(values)


def trained(recipe: Recipe, folder: Path, **options: Any) -> Encoder:
    assert recipe.evaluation is not None
    return train(recipe, folder, evaluate=dev_sets(recipe.evaluation.dev, recipe.evaluation.guard), **options)


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> Path:
    """Where the run is that all tests look at, once it is made; its data were in the folder that `data` names."""
    return tmp_path_factory.mktemp("once")


@pytest.fixture
def run(once, recipe, tmp_path) -> Path:
    """The trained recipe."""
    if not (once / "run").exists():
        assert trained(recipe, once / "run").card_facts is not None
        (once / "data").write_text(str(tmp_path))
    return once / "run"


def test_it_says_what_the_run_says(run, tmp_path):
    log = json.loads((run / "run.json").read_text())
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    shared = sum(pair["query"] == SENTENCES[0][:40] for pair in pairs)
    assert shared == 5
    (data,) = log["data"]["supervised"]
    assert data["overlap"]["near"]["rows"] == shared and data["overlap"]["near"]["columns"]["query"] == shared
    assert data["overlap"]["far"]["rows"] == 0
    card = ModelCard.load(run / "supervised" / "README.md")
    assert card.data.library_name == "embrew" and card.data.pipeline_tag == "sentence-similarity"
    assert card.data.to_dict().get("language") is None and card.data.to_dict().get("base_model") is None
    assert {result.dataset_name: result.metric_value for result in card.data.eval_results} == {
        "near": round(log["scores"]["supervised"]["near"], 6),
        "far": round(log["scores"]["supervised"]["guard/far"], 6),
    }
    for name in ("base", "compress", "supervised"):
        assert f"{log['scores'][name]['near']:.4f}" in card.text
    assert f"| supervised | pairs.jsonl | near | {shared} of {len(pairs)} | {shared / len(pairs):.2%} | " in card.text
    assert "| compress | compression | texts.jsonl | train | – | 25 |" in card.text
    assert f"step {log['kept']['supervised']} was kept, the best of 2" in card.text
    first = ModelCard.load(run / "compress" / "README.md").text
    assert "pairs.jsonl" not in first.split("### Recipe")[0], "a stage says nothing of what comes after it"


def test_it_goes_along(run, recipe, tmp_path):
    """To an opened encoder, to what is saved, merged, exported or trained from it."""
    opened = Encoder.from_pretrained(run)
    text = ModelCard.load(run / "supervised" / "README.md").text
    opened.save_pretrained(tmp_path / "again")
    assert ModelCard.load(tmp_path / "again" / "README.md").text == text
    merge_encoder(run, tmp_path / "merged", verify="off")
    merged = ModelCard.load(tmp_path / "merged" / "README.md").text
    assert (
        "Its weights are all its own" in merged and text.partition("## Scores")[2] == merged.partition("## Scores")[2]
    )
    export_encoder(opened, tmp_path / "stock", verify="off")
    stock = ModelCard.load(tmp_path / "stock" / "README.md")
    assert stock.data.library_name == "sentence-transformers" and "sentence-transformers" in stock.data.tags
    assert 'SentenceTransformer("PATH")' in stock.text
    assert stock.text.partition("## Scores")[2] == text.partition("## Scores")[2]
    then = recipe.model_copy(update={"stages": recipe.stages[1:]})
    trained(then, tmp_path / "then", start=run)
    after = (tmp_path / "then" / "supervised" / "README.md").read_text()
    assert "## Training before that" in after and "| compress | compression | texts.jsonl |" in after


def test_an_untrained_encoder(tmp_path):
    Encoder.from_pretrained("nano", pooling="mean").save_pretrained(tmp_path / "saved", verify="off")
    card = ModelCard.load(tmp_path / "saved" / "README.md")
    assert "The base's weights, unchanged." in card.text and "## Scores" not in card.text
    assert card.data.eval_results is None
