"""ESE: the parts of its loss in log lines and in `run.json`, and a resumed run, equal to one without a stop."""

from __future__ import annotations

import json
import logging
import shutil
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch

from embrew.losses import espresso
from embrew.methods import Espresso
from embrew.recipe import Recipe
from tests.distributed.runs import train_counted, write_data
from tests.training.one_stage import one_stage
from tests.training.test_stages import equal, tensors

STEPS, STOPPED_AT = 6, 5  # checkpoints after 2 and 4
Figures = list[dict[str, float]]


@pytest.fixture
def recipe(model_folder, tmp_path) -> Callable[..., Recipe]:
    """ESE on a tiny model, with settings of its own."""
    shutil.copytree(model_folder("llama"), tmp_path / "llama")
    write_data(tmp_path)

    def made(training: dict[str, Any], *, batch: Any = None, **objective: Any) -> Recipe:
        encoder = {"template": "{instruction}{text}", "attention": "bidirectional"}
        encoder["lora"] = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1 if "layers" in objective else 0.0}
        objective = {"type": "espresso", "base": {"type": "contrastive"}, "compression_size": 8, **objective}
        batch = {"size": 4, **(batch or {})}
        return one_stage(tmp_path / "llama", tmp_path / "c.jsonl", encoder, training, objective=objective, batch=batch)

    return made


@pytest.fixture
def seen(monkeypatch) -> Figures:
    """The two terms of every loss that is computed with gradient."""
    found: Figures = []
    loss = Espresso.loss

    def watched(self: Espresso, embeddings: Any, batch: Any) -> Any:
        parts = loss(self, embeddings, batch)
        if torch.is_grad_enabled():
            found.append({name: float(parts[name]) for name in ("express", "compress")})
        return parts

    monkeypatch.setattr(Espresso, "loss", watched)
    return found


@pytest.mark.parametrize("batch", [pytest.param({}, marks=pytest.mark.slow), {"mini_batch_size": 2}])
def test_parts_are_logged_and_written(recipe, seen, batch, tmp_path, caplog):
    """Two steps a line, with gradient caching too; a run that is resumed has all lines."""
    settings = recipe(
        {"max_steps": 6, "learning_rate": 1e-3, "logging_steps": 2, "save_steps": 4}, compress_weight=1e4, batch=batch
    )
    with caplog.at_level(logging.INFO, logger="embrew"):
        train_counted(settings, tmp_path / "run", stop=5)
        del seen[4:]  # of which no checkpoint is left
        train_counted(settings, tmp_path / "run", resume=True)
    assert len(seen) == 6
    lines = json.loads((tmp_path / "run" / "run.json").read_text())["losses"]["one"]
    assert [line["step"] for line in lines] == [2, 4, 6]
    for line, pair in zip(lines, zip(seen[::2], seen[1::2], strict=True), strict=True):
        assert line["express"] == pytest.approx(statistics.fmean(one["express"] for one in pair), rel=1e-6)
        assert line["compress"] == pytest.approx(statistics.fmean(one["compress"] for one in pair), rel=1e-6)
        assert line["loss"] == pytest.approx(line["express"] + 1e4 * line["compress"], rel=1e-5)
        shown = f"one  step {line['step']}/6  loss {line['loss']:.4g}  grad_norm "
        assert sum(message.startswith(shown) for message in caplog.messages) == 1
    assert sum("express" in message and "compress" in message for message in caplog.messages) >= 3


def test_stopped_and_resumed_is_never_stopped(recipe, tmp_path, monkeypatch):
    """To the bit, with dropout on, learned layer weights, and targets from random columns."""
    iterated, find = [], espresso._iterated
    monkeypatch.setattr(espresso, "OVERSAMPLING", 8)  # or a model of 32 dimensions would always be solved exactly
    monkeypatch.setattr(espresso, "_iterated", lambda *given: iterated.append(1) or find(*given))
    made = recipe({"max_steps": STEPS, "learning_rate": 1e-2, "save_steps": 2}, layers="learned")
    assert train_counted(made, tmp_path / "whole") == STEPS
    assert train_counted(made, tmp_path / "halves", stop=STOPPED_AT) == STOPPED_AT
    assert train_counted(made, tmp_path / "halves", resume=True) == 2, "four of six were done"
    assert iterated
    assert tensors(tmp_path / "whole" / "one")
    equal(tmp_path / "whole" / "one", tmp_path / "halves" / "one")
