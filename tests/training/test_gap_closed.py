"""The share of the gap closed in runs: in `run.json` and the log, beside training and never in its way."""

from __future__ import annotations

import html
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from embrew.encoder import Encoder
from embrew.evaluation.dev import dev_sets
from embrew.inspection import inspect
from embrew.methods.gap import Gap
from embrew.model.kernels import use_own_sdpa
from embrew.recipe import Recipe, build
from embrew.report.page import write_report
from embrew.report.sources import ModelSource
from embrew.sweep.reuse import reuse_stages
from embrew.training import run_json
from embrew.training.stage_evaluation import MARGIN, GapClosed, gap_words
from embrew.training.trainer import StageTrainer
from tests.conftest import SENTENCES
from tests.report.subjects import subject
from tests.training.test_stage_evaluation import log_of, stopped
from tests.training.test_stages import equal, values
from tests.training.unverified import train

__all__ = ["values"]  # the fixture


def compress(
    values: dict[str, Any], folder: Path, *, copies: int = 3, evaluation: Any = None, **objective: Any
) -> Recipe:
    """The first stage, six steps with dropout, on 25 texts for each copy, of which one in twenty is set aside."""
    texts = [f"{a} {b} Part {i}, {n}." for n in range(copies) for i, a in enumerate(SENTENCES) for b in SENTENCES]
    (folder / "many.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, texts[0]]))
    stage = {**values["stages"][0], "data": {"path": str(folder / "many.jsonl")}}
    stage["objective"] = {**stage["objective"], "target": "same", **objective}
    stage["training"] = {**stage["training"], "max_steps": 6, "learning_rate": 0.003, "logging_steps": 1}
    given = {"evaluation": {"dev": ["unused"], **evaluation}} if evaluation else {}
    return Recipe.from_values({**values, "stages": [stage], **given})


def unscored(encoder: Encoder) -> dict[str, float]:
    return {"dev": 0.5}


def losses_of(recipe: Recipe, folder: Path, **how: Any) -> list[float]:
    """Train; return every step's loss."""
    found: list[float] = []
    log = StageTrainer.log

    def watched(self: StageTrainer, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        log(self, logs, *args, **kwargs)
        found.extend([logs["loss"]] if "loss" in logs else [])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageTrainer, "log", watched)
        train(recipe, folder, **how)
    return found


@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_written_and_said(bf16, values, tmp_path, caplog):
    """Start, evaluations and end; the figures of the saved encoder are those at the end, measured anew.

    Anew, in the stage's arithmetic and with its attention kernel. Without `bf16`, the CPU chooses the arithmetic.
    """
    recipe = compress(values, tmp_path, evaluation={"every": 2})
    recipe.stages[0].training["bf16"] = bf16
    seen: list[str] = []
    init = StageTrainer.__init__

    def watched(self: StageTrainer, step: Any, args: Any, rows: Any, *more: Any) -> None:
        seen.extend(rows["text"])
        init(self, step, args, rows, *more)

    with caplog.at_level(logging.INFO, logger="embrew"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageTrainer, "__init__", watched)
        train(recipe, tmp_path / "run", evaluate=unscored)
    log = log_of(tmp_path / "run")
    found = log["gap"]["compress"]
    assert found["texts"] == 75 // 20 and found["tokens"] > 30 and found["none"] > found["context"]
    assert [point["step"] for point in found["curve"]] == [0, 2, 4, 6]
    assert found["end"] == found["curve"][-3], "the first of three equal dev scores is kept"
    assert log["kept"] == {"compress": 2}
    assert log["scores"]["compress"] == {"dev": 0.5} and all(
        p["scores"] == {"dev": 0.5} for p in log["curves"]["compress"]
    )
    texts = {json.loads(line)["text"] for line in (tmp_path / "many.jsonl").read_text().splitlines()}
    held = sorted(texts - set(seen))
    assert len(held) == 3 and len(set(seen)) == 72 and log["samples"]["compress"]["an_epoch"] == len(seen)
    encoder = Encoder.from_pretrained(tmp_path / "run" / "compress", merge_adapter=False)
    objective: Any = build.objective(recipe.stages[0].objective)
    objective.setup(encoder)
    use_own_sdpa(encoder.backbone.inner)  # as training does; in bfloat16 it rounds otherwise than the library's
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        gap = Gap.measure(objective, [{"text": text} for text in held], encoder)
        shares = gap.shares(encoder)
    assert gap.none == pytest.approx(found["none"], rel=1e-5) and gap.context == pytest.approx(
        found["context"], abs=1e-6
    )
    assert shares.same_text == pytest.approx(found["end"]["share"], abs=1e-4)
    start, two = found["curve"][:2]
    lines = [line for line in caplog.messages if "share of the gap" in line]
    assert lines[0] == "compress  3 texts are set aside, to measure the share of the gap closed"
    said = gap_words(start["share"], start["other"])
    assert lines[1] == f"compress  {said}, on 3 held-out texts, before training"
    assert lines[2] == (
        f"compress  step 2/6  dev 0.500 (base 0.500)  {gap_words(two['share'], two['other'])}  best so far"
    )
    before = f"{start['share']:.2f}".replace("-", "−")
    assert f"compress  {gap_words(two['share'], two['other'])}, {before} before training" in lines
    assert reuse_stages(recipe, tmp_path / "other", [tmp_path / "run"]) == [("compress", tmp_path / "run")]
    of_stages = [name for name, value in log.items() if isinstance(value, dict) and "compress" in value]
    assert {"gap", "losses", "samples", "scores", "curves", "kept", "data", "arithmetic", "seconds"} == set(of_stages)
    taken = log_of(tmp_path / "other")
    assert all(taken[name]["compress"] == log[name]["compress"] for name in of_stages)


def test_training_is_the_same_with_it(values, tmp_path, monkeypatch):
    """Losses of every step and weights, to the bit, under dropout; without it, and without evaluations."""
    measured = losses_of(compress(values, tmp_path, evaluation={"at": "log"}), tmp_path / "with", evaluate=unscored)
    assert len(log_of(tmp_path / "with")["gap"]["compress"]["curve"]) == 5
    monkeypatch.setattr(run_json, "measure_start", lambda *_, **__: None)
    plain = losses_of(compress(values, tmp_path), tmp_path / "without")
    assert "gap" not in log_of(tmp_path / "without")
    assert measured == plain and len(plain) == 6
    equal(tmp_path / "with" / "compress", tmp_path / "without" / "compress")


def test_a_stage_without_a_share_cannot_be_chosen_by_it(values, tmp_path):
    dev = tmp_path / "pairs"
    dev.mkdir()
    (dev / "dev.jsonl").write_text(json.dumps({"sentence1": "a", "sentence2": "b", "score": 1}) + "\n")
    assert dev_sets([str(dev)], metric="gap").metrics == ["dev", "pairs"]
    for name in ("gap", "gap_other"):
        with pytest.raises(ValueError, match=f"a dev set is called {name},"):
            dev_sets([str(dev := dev.rename(tmp_path / name))])
    by_gap = {"dev": ["unused"], "every": 2, "metric": "gap"}
    three = Recipe.from_values({**values, "evaluation": by_gap})
    words = (
        r"stage unsupervised: evaluation.metric=gap, the share of the gap closed, exists where the objective is comp"
    )
    for check in (build.check_recipe, lambda recipe: train(recipe, tmp_path / "run", evaluate=unscored)):
        with pytest.raises(ValueError, match=words):
            check(three)
    build.check_recipe(Recipe.from_values({**values, "evaluation": {**by_gap, "stages": ["compress"]}}))
    with pytest.raises(ValueError, match="stage compress: evaluation.metric=gap"):
        build.check_recipe(compress(values, tmp_path, evaluation={"every": 2, "metric": "gap"}, held_out=0))
    few = compress(values, tmp_path, copies=1, evaluation={"every": 2, "metric": "gap"})
    with pytest.raises(
        ValueError, match="stage compress: no share of the gap closed: no texts are set aside, since there"
    ):
        train(few, tmp_path / "few", evaluate=unscored)


def test_too_few_texts_are_all_trained_on(values, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="embrew"):
        train(compress(values, tmp_path, copies=1), tmp_path / "run")
    log = log_of(tmp_path / "run")
    assert "gap" not in log and log["samples"]["compress"]["an_epoch"] == 26
    assert any("no share of the gap closed is measured: no texts are set aside" in line for line in caplog.messages)


def test_stopped_and_resumed_is_never_stopped(values, tmp_path):
    recipe = compress(values, tmp_path, evaluation={"every": 2, "metric": "gap"})
    train(recipe, tmp_path / "whole", evaluate=unscored)
    stopped(recipe, tmp_path / "halves", "evaluation 4", unscored)
    train(recipe, tmp_path / "halves", evaluate=unscored, resume=True)
    whole, halves = (log_of(tmp_path / name) for name in ("whole", "halves"))
    assert whole["gap"] == halves["gap"] and whole["kept"] == halves["kept"] and whole["samples"] == halves["samples"]
    equal(tmp_path / "whole" / "compress", tmp_path / "halves" / "compress")


# ---- has it trained? ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "other", "trained"),
    [
        (MARGIN, -0.2, True),
        (MARGIN - 0.001, -0.2, False),
        (0.3 + MARGIN + 0.001, 0.3, True),
        (0.3 + MARGIN - 0.001, 0.3, False),
        (-0.1, -0.6, False),
        (0.9, 0.1, True),
    ],
)
def test_a_stage_that_hardly_trained_is_named(own, other, trained, caplog, monkeypatch):
    """Both controls count: no memory at all, and another text's."""
    monkeypatch.setattr(GapClosed, "scores", lambda *_: {"gap": own, "gap_other": other})
    record: dict[str, Any] = {"texts": 3, "curve": [{"step": 0, "share": -0.02, "other": 0.0}]}
    closed = GapClosed("compress", None, record, bfloat16=False)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, logger="embrew"):
        closed.finish(None, 300)  # type: ignore[arg-type]
    warned = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert len(warned) == (0 if trained else 1)
    assert all("compress  the memory tokens hardly help: share of the gap closed" in line for line in warned)
    assert all(", on 3 texts, which are too few to be sure of it; the stage" in line for line in warned)
    assert record["end"] == {"step": 300, "share": own, "other": other} == record["curve"][-1]
    assert caplog.messages[0] == f"compress  {gap_words(own, other)}, −0.02 before training"


def test_where_scores_are_shown(tmp_path):
    entry = {"curve": [{"step": 0, "share": 0.01, "other": 0.0}], "end": {"step": 300, "share": 0.23, "other": -0.05}}
    log = {"format": 2, "scores": {}, "seconds": {}, "data": {}, "stages": ["compress"], "gap": {"compress": entry}}
    (tmp_path / "run.json").write_text(json.dumps(log))
    words = "share of the gap closed 0.23 after step 300, 0.01 before (another text's memory −0.05)"
    assert inspect(tmp_path).facts == (f"compress: {words}",)
    trained = ModelSource(run=tmp_path, stage="compress")
    write_report(replace(subject(["other"], ["T1"]), sources={"other": (trained,)}), tmp_path / "r.html")
    assert f"<li><bdi>other</bdi>, stage <bdi>compress</bdi>: {words}</li>" in html.unescape(
        (tmp_path / "r.html").read_text()
    )


def test_texts_that_are_too_long_to_measure(values, tmp_path, tokenizer, caplog):
    """A table of 100 positions: enough for memory and target, not for context and target in one row."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=100, n_embd=32, n_layer=2, n_head=4))
    model.save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    values["encoder"] |= {
        "model": str(tmp_path / "gpt2"),
        "lora": {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn"]},
        "attention": "causal",
        "max_length": {"query": 16, "document": 90},
    }
    recipe = compress(values, tmp_path, divergence="nll")
    chosen = compress(values, tmp_path, divergence="nll", evaluation={"every": 2, "metric": "gap"})
    longer = [f"{' '.join(SENTENCES[:3])} Part {i}. " * 2 for i in range(60)]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in longer))
    build.check_recipe(recipe)
    words = "3 of 3 held-out texts are left out, since their context and target together have more than the 100 tokens"
    with pytest.raises(ValueError, match=f"no share of the gap closed: {words}"):
        train(chosen, tmp_path / "chosen", evaluate=unscored)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="embrew"):
        train(recipe, tmp_path / "run")
    assert sum(words in line for line in caplog.messages) == 1 and "gap" not in log_of(tmp_path / "run")
