"""`report_to: tensorboard`: the event files hold the figures of the log, and outlive the stage's checkpoints."""

from __future__ import annotations

import importlib.util
import json
import logging

import pytest

from embrew.recipe import Recipe
from embrew.training.stages import train
from tests.training.one_stage import one_stage


@pytest.fixture
def recipe(model_folder, tmp_path) -> Recipe:
    pairs = [{"query": f"question {i}", "positive": f"answer {i}"} for i in range(8)]
    near = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "score": i} for i in range(4)]
    for name, rows in (("pairs", pairs), ("near", near)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {"max_steps": 4, "logging_steps": 2, "report_to": "tensorboard"}
    made = one_stage(model_folder("llama"), tmp_path / "pairs.jsonl", training=training)
    evaluation = {"dev": [str(tmp_path / "near.jsonl")], "every": 2}
    return Recipe.from_values({**made.resolved(), "evaluation": evaluation})


def test_figures_are_in_event_files(recipe, tmp_path, caplog):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with caplog.at_level(logging.INFO, "embrew"):
        train(recipe, tmp_path / "out", evaluate=lambda encoder: {"dev": 0.5, "near": 0.5}, verify="off")
    folder = tmp_path / "out" / "one.tensorboard"
    assert [path.name for path in folder.parent.glob("one*")] and not (tmp_path / "out" / "one.work").exists()
    found = EventAccumulator(str(folder))
    found.Reload()
    scalars = {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}
    assert [event.step for event in scalars["train/loss"]] == [2, 4]
    assert [event.step for event in scalars["eval/dev"]] == [2, 4]
    assert all(event.value == 0.5 for event in scalars["eval/dev"])
    (line,) = (message for message in caplog.messages if "step 2/4" in message and "loss" in message)
    assert f"loss {scalars['train/loss'][0].value:.4g}" in line


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_a_library_that_is_missing_is_named_before_a_model_is_opened(recipe, tmp_path):
    values = recipe.resolved()
    values["stages"][0]["training"]["report_to"] = "wandb"
    values["encoder"]["model"] = "no-such-model"
    with pytest.raises(ValueError, match="stage one: training.report_to=wandb is not installed; pip install"):
        train(Recipe.from_values(values), tmp_path / "out")
    assert not (tmp_path / "out").exists()
