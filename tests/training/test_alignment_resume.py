"""Alignment that is stopped while its reference scores are computed, or after: nothing is computed twice."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from embrew.methods import autoregembed as alignment
from embrew.recipe import Recipe
from tests.conftest import SENTENCES
from tests.training.one_stage import one_stage
from tests.training.test_stages import LORA, equal
from tests.training.unverified import train

SHARD_SIZE = 5  # of 25 rows: five files


@pytest.fixture
def recipe(model_folder, tmp_path) -> Recipe:
    rows = [
        {"query": f"{a[:20]} {i}", "positive": b[:30], "negative": a[20:40]}
        for i, a in enumerate(SENTENCES)
        for b in SENTENCES
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {"max_steps": 4, "learning_rate": 0.01, "save_steps": 2, "per_device_train_batch_size": 4}
    encoder = {
        "template": "{text}\n{instruction}{memory}",
        "memory_tokens": 2,
        "pooling": {"mode": "mean", "over": "memory"},
        "max_length": {"query": 64, "document": 64},
        "lora": LORA,
    }
    objective = {"type": "alignment"}
    data = tmp_path / "pairs.jsonl"
    return one_stage(model_folder("llama"), data, encoder, training, name="align", objective=objective, batch=None)


class Counted:
    """The objective's own computation of references, counted, and stopped after a number of calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.stop_after = 0, -1
        original = alignment.Alignment._references
        counter = self

        def references(self: Any, rows: Any, encoder: Any) -> Any:
            if counter.calls == counter.stop_after:
                raise KeyboardInterrupt
            counter.calls += 1
            return original(self, rows, encoder)

        monkeypatch.setattr(alignment.Alignment, "_references", references)
        monkeypatch.setattr(alignment, "SHARD_SIZE", SHARD_SIZE)


@pytest.fixture
def counted(monkeypatch) -> Counted:
    return Counted(monkeypatch)


def test_stopped_among_the_references(recipe, counted, tmp_path):
    train(recipe, tmp_path / "whole")
    assert counted.calls == 25 // SHARD_SIZE
    counted.calls, counted.stop_after = 0, 3
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "halves")
    kept = tmp_path / "halves" / "align.work" / "computed" / "0"
    assert len(list(kept.glob("*.safetensors"))) == len(list(kept.iterdir())) == 3
    counted.calls, counted.stop_after = 0, -1
    train(recipe, tmp_path / "halves", resume=True)
    assert counted.calls == 2  # the other two
    equal(tmp_path / "whole" / "align", tmp_path / "halves" / "align")
    assert not kept.exists()  # a finished stage keeps nothing that only training needs


def test_scores_of_another_tokenizer_are_not_read(recipe, counted, tmp_path):
    """Same weights, same texts, other tokens: each score is computed again, and the run is that of a new folder."""
    base = tmp_path / "base"
    shutil.copytree(recipe.encoder.model, base)
    recipe = Recipe.from_values(
        {**recipe.resolved(), "encoder": {**recipe.resolved()["encoder"], "model": str(base), "dtype": "float32"}}
    )
    counted.stop_after = 3
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run")
    path = base / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": "<pad>"}))
    counted.calls, counted.stop_after = 0, -1
    with pytest.raises(ValueError, match="its files have changed"):
        train(recipe, tmp_path / "run", resume=True)
    begun = tmp_path / "run" / "align.work" / "stage.json"
    values = {**json.loads(begun.read_text()), "content": {}}
    del values["sha256"]
    begun.write_text(json.dumps(values))
    train(recipe, tmp_path / "run", resume=True)
    assert counted.calls == 25 // SHARD_SIZE, f"{25 // SHARD_SIZE - counted.calls} files of another tokenizer were read"
    train(recipe, tmp_path / "new")
    equal(tmp_path / "new" / "align", tmp_path / "run" / "align")
