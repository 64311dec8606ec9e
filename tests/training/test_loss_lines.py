"""The parts of a loss in log lines and in `run.json`, also of a resumed stage."""

from __future__ import annotations

import json
import logging
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from embrew.methods import Espresso
from embrew.recipe import Recipe
from tests.distributed.runs import train_counted, write_data

Figures = list[dict[str, float]]


@pytest.fixture
def recipe(model_folder: Callable[[str], Path], tmp_path: Path) -> Callable[..., Recipe]:
    """ESE on a tiny model, six steps, with settings of its own."""
    shutil.copytree(model_folder("llama"), tmp_path / "llama")
    write_data(tmp_path)

    def made(*, batch: Any = None, training: Any = None, **objective: Any) -> Recipe:
        stage = {
            "name": "one",
            "objective": {"type": "espresso", "base": {"type": "contrastive"}, "compression_size": 8, **objective},
            "data": {"path": str(tmp_path / "c.jsonl")},
            "batch": {"size": 4, **(batch or {})},
            "training": {
                "max_steps": 6,
                "learning_rate": 1e-3,
                "save_steps": 2,
                "use_cpu": True,
                "logging_steps": 1,
                **(training or {}),
            },
        }
        encoder = {
            "model": str(tmp_path / "llama"),
            "template": "{instruction}{text}",
            "attention": "bidirectional",
            "pooling": {"mode": "mean", "over": "text"},
            "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0},
        }
        return Recipe.from_values({"encoder": encoder, "stages": [stage]})

    return made


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Figures:
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
def test_parts_are_logged_and_written(
    recipe: Callable[..., Recipe], seen: Figures, batch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two steps a line, with gradient caching too; a run that is resumed has all lines."""
    settings = recipe(compress_weight=1e4, batch=batch, training={"max_steps": 10, "logging_steps": 2, "save_steps": 4})
    with caplog.at_level(logging.INFO, logger="embrew"):
        train_counted(settings, tmp_path / "run", stop=5)
        del seen[4:]  # of which no checkpoint is left
        train_counted(settings, tmp_path / "run", resume=True)
    assert len(seen) == 10
    lines = json.loads((tmp_path / "run" / "run.json").read_text())["losses"]["one"]
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10]
    for line, pair in zip(lines, zip(seen[::2], seen[1::2], strict=True), strict=True):
        assert line["express"] == pytest.approx(statistics.fmean(one["express"] for one in pair), rel=1e-6)
        assert line["compress"] == pytest.approx(statistics.fmean(one["compress"] for one in pair), rel=1e-6)
        assert line["loss"] == pytest.approx(line["express"] + 1e4 * line["compress"], rel=1e-5)
        shown = f"one  step {line['step']}/10  loss {line['loss']:.4g}  grad_norm "
        assert sum(message.startswith(shown) for message in caplog.messages) == 1
    assert sum("express" in message and "compress" in message for message in caplog.messages) >= 5
