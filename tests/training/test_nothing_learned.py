"""What cannot be learned is refused before training; what was trained for nothing is kept, and said."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from embrew import Encoder
from embrew.recipe import Recipe
from embrew.training.stages import train

DIFFERENT = [{"query": f"question {i}", "positive": f"answer {i} of many"} for i in range(8)]
SAME_DOCUMENTS = [{**row, "positive": "answer"} for row in DIFFERENT]
SAME_QUERIES = [{**row, "query": "question"} for row in DIFFERENT]
GRADED = [{"sentence1": row["query"], "sentence2": row["positive"], "score": 1} for row in DIFFERENT]
DROPOUT = {"type": "contrastive", "positives": "dropout", "attention_dropout": 0.1}


def recipe(model: Path, folder: Path, rows: list[dict[str, Any]], objective: Any = None, **training: Any) -> Recipe:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = {
        "name": "one",
        "objective": objective or {"type": "contrastive"},
        "data": {"path": str(file)},
        "batch": {"size": 4},
        "training": {"max_steps": 4, "learning_rate": 0.01, "use_cpu": True, "logging_steps": 1, **training},
    }
    encoder = {"model": str(model), "pooling": {"mode": "mean"}, "lora": {"r": 2}, "dtype": "float32"}
    return Recipe.from_values({"encoder": encoder, "stages": [stage]})


@pytest.mark.parametrize(
    ("rows", "objective", "message"),
    [
        (SAME_DOCUMENTS, None, "all documents are equal"),
        (SAME_QUERIES, None, "all queries are equal"),
        (SAME_DOCUMENTS, {"type": "matryoshka", "dims": [8, 32], "base": {"type": "contrastive"}}, "all documents"),
        ([{**row, "negatives": ["answer"]} for row in SAME_DOCUMENTS], None, "all documents are equal"),
        ([{"text": "a text"} for _ in range(8)], DROPOUT, "all texts are equal"),
        (GRADED, {"type": "angle", "in_batch_weight": 0}, "all 8 rows have the same score"),
        ([{**row, "score": 0} for row in GRADED], {"type": "angle"}, "all 8 rows have the same score"),
    ],
)
def test_rows_with_nothing_to_tell_apart(rows, objective, message, model_folder, tmp_path):
    """Their loss is 0, and has no gradient. No step is trained."""
    with pytest.raises(ValueError, match=f"^stage one: {message}.*; give rows with different"):
        train(recipe(model_folder("llama"), tmp_path, rows, objective), tmp_path / "out")
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("setting", [{"temperature": 1e-30}, {"scale": 1e30}, {"temperature": 1e30}])
def test_a_temperature_without_a_gradient(setting, model_folder, tmp_path):
    with pytest.raises(ValueError, match="temperature=(1e.30|9.9*e-31); allowed: (greater|less) than or equal to"):
        train(recipe(model_folder("llama"), tmp_path, DIFFERENT, {"type": "contrastive", **setting}), tmp_path / "out")


def test_what_was_trained_for_nothing_is_kept(model_folder, tmp_path, caplog):
    """A learning rate that changes no weight is seen in the end only."""
    train(recipe(model_folder("llama"), tmp_path, DIFFERENT, learning_rate=1e-45), tmp_path / "out")
    assert "trained for 4 steps and changes no vector at all; it is saved as it is" in caplog.text
    assert Encoder.from_pretrained(tmp_path / "out").steps == 4


@pytest.mark.parametrize(("rate", "steps", "rises"), [(1e3, 2, True), (0.01, 12, False)])
def test_a_loss_that_ends_above_its_start_is_said(rate, steps, rises, model_folder, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    settings = {"learning_rate": rate, "max_steps": steps, "lr_scheduler_type": "constant"}
    train(recipe(model_folder("llama"), tmp_path, DIFFERENT, **settings), tmp_path / "out")
    losses = [line["loss"] for line in json.loads((tmp_path / "out" / "run.json").read_text())["losses"]["one"]]
    assert (losses[-1] > losses[0]) == rises
    said = f"the training loss ends at {losses[-1]:.4g}, above its start, {losses[0]:.4g}"
    assert (said in caplog.text) == rises


def test_weights_that_are_not_finite_are_not_saved(model_folder, tmp_path):
    """After the last step, whose loss was that of the weights before it."""
    with pytest.raises(ValueError, match="stage one: trained weights are not finite after step 1; lower the learning"):
        train(recipe(model_folder("llama"), tmp_path, DIFFERENT, learning_rate=1e39, max_steps=1), tmp_path / "out")
    assert not (tmp_path / "out" / "one").exists()
