"""Warnings about parts of the loss: said once, of means over log lines, also in resumed and short stages."""

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
from transformers import TrainerControl, TrainerState, TrainingArguments

from embrew.methods import Contrastive, Espresso
from embrew.recipe import Recipe
from embrew.training.monitoring import LINES, Monitoring
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


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def said(figures: Figures, weight: float, step: int) -> str:
    """The warning, with terms of these steps."""
    express = statistics.fmean(one["express"] for one in figures)
    compress = weight * statistics.fmean(one["compress"] for one in figures)
    return (
        f"one  the compress term, {compress:.4g}, is larger than the express term, {express:.4g} (weights included): "
        "most of the loss only moves leading dimensions towards their compressed form; set align_norm: l2, or a "
        f"smaller compress_weight (mean of the log lines until step {step})"
    )


@pytest.mark.parametrize("batch", [{}, {"mini_batch_size": 2}])
def test_said_once_and_written(
    recipe: Callable[..., Recipe], seen: Figures, batch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two steps a line: the first window is six steps; with gradient caching too. `run.json` has each line's terms."""
    settings = recipe(compress_weight=1e4, batch=batch, training={"max_steps": 10, "logging_steps": 2})
    with caplog.at_level(logging.INFO, logger="embrew"):
        train_counted(settings, tmp_path / "run")
    assert len(seen) == 10
    assert warnings(caplog) == [said(seen[:6], 1e4, 6)]
    lines = json.loads((tmp_path / "run" / "run.json").read_text())["losses"]["one"]
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10]
    for line, pair in zip(lines, zip(seen[::2], seen[1::2], strict=True), strict=True):
        assert line["express"] == pytest.approx(statistics.fmean(one["express"] for one in pair), rel=1e-6)
        assert line["compress"] == pytest.approx(statistics.fmean(one["compress"] for one in pair), rel=1e-6)
        assert line["loss"] == pytest.approx(line["express"] + 1e4 * line["compress"], rel=1e-5)
    assert sum("express" in message and "compress" in message for message in caplog.messages if "step " in message) >= 5


def test_nothing_is_said_of_a_small_term(
    recipe: Callable[..., Recipe], seen: Figures, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_counted(recipe(compress_weight=1e-6), tmp_path / "run")
    assert len(seen) == 6 and warnings(caplog) == []


def test_a_resumed_stage_does_not_repeat_it(
    recipe: Callable[..., Recipe], seen: Figures, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped before step 5, of which checkpoint 4 is left: said at step 3, before it."""
    settings = recipe(compress_weight=1e4)
    train_counted(settings, tmp_path / "run", stop=5)
    assert warnings(caplog) == [said(seen[:3], 1e4, 3)]
    caplog.clear()
    assert train_counted(settings, tmp_path / "run", resume=True) == 2
    assert warnings(caplog) == []
    lines = json.loads((tmp_path / "run" / "run.json").read_text())["losses"]["one"]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]


def test_a_resumed_stage_says_what_was_not_said(
    recipe: Callable[..., Recipe], seen: Figures, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped before step 3, of which checkpoint 2 is left: the window reaches back over the checkpoint."""
    settings = recipe(compress_weight=1e4)
    train_counted(settings, tmp_path / "run", stop=3)
    assert warnings(caplog) == []
    before = seen[:2]
    seen.clear()
    train_counted(settings, tmp_path / "run", resume=True)
    assert warnings(caplog) == [said([*before, seen[0]], 1e4, 3)]


def test_a_stage_of_few_lines_is_looked_at_at_its_end(
    recipe: Callable[..., Recipe], seen: Figures, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_counted(recipe(compress_weight=1e4, training={"max_steps": 4, "logging_steps": 2}), tmp_path / "run")
    assert warnings(caplog) == [said(seen, 1e4, 4)]


def test_only_the_first_process_says_it(caplog: pytest.LogCaptureFixture) -> None:
    line: dict[str, Any] = {"loss": 3.0, "express": 1.0, "compress": 2.0}
    arguments, control = TrainingArguments(use_cpu=True), TrainerControl()
    for first in (False, True):
        watcher = Monitoring("one", Espresso(base=Contrastive()))
        state = TrainerState(is_world_process_zero=first)
        for step in range(1, 8):
            state.log_history.append({**line, "step": step})
            watcher.on_log(arguments, state, control, logs=dict(line))
        watcher.on_train_end(arguments, state, control)
        assert len(warnings(caplog)) == first
    assert warnings(caplog)[0].endswith(f"until step {LINES})")


def test_terms_by_hand() -> None:
    figures = {"loss": 0.0, "express": 2.0, "compress": 3.0}
    found = Espresso(base=Contrastive()).concern(figures)
    assert found is not None and "compress term, 3, is larger than the express term, 2 " in found
    assert Espresso(base=Contrastive(), compress_weight=0.6).concern(figures) is None  # 1.8
    found = Espresso(base=Contrastive(), compress_weight=0.7, align_norm="l2").concern(figures)
    assert found is not None and found.endswith("; set a smaller compress_weight") and "2.1" in found
    assert Espresso(base=Contrastive(), express_weight=1.6).concern(figures) is None
    assert Espresso(base=Contrastive(), express_weight=0.0).concern(figures) is None, "asked for"
    assert Espresso(base=Contrastive(), compression="none").concern({"loss": 2.0, "express": 2.0}) is None
    assert Contrastive().concern(figures) is None
