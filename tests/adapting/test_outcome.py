"""What is said of scores, how many steps time allows, and scores of rankings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from embrew.adapting import recipes
from embrew.adapting.baselines import score_bm25, score_hybrid
from embrew.adapting.defaults import read_defaults
from embrew.adapting.outcome import RaceRow, advice_lines, best_of, cheapest_of, named_first
from embrew.adapting.preparation.prepare import Prepared
from embrew.evaluation import Result
from embrew.recipe import Recipe
from tests.rows import write_beir


def result(scores: list[float]) -> Result:
    names = [f"q{i}" for i in range(len(scores))]
    mean = sum(scores) / len(scores)
    return Result("t", "test", "retrieval", mean, {"ndcg_at_10": mean}, 1.0, {}, {"score": scores, "query": names})


def row(name: str, scores: list[float], dev: list[float] | None = None, **more: Any) -> RaceRow:
    model = None if "BM25" in name else name
    return RaceRow(name=name, dev=result(dev or scores), test=result(scores), results=Path(name), model=model, **more)


HALF, MORE, NEAR = [0.5] * 60, [0.9] * 60, [1.0, 0.75] * 30


def prepared(folder: Path, **counts: int) -> Prepared:
    return Prepared(folder, {"counts": {"train_pairs": 800, "test_queries": 60, **counts}})


def test_what_is_used_and_what_is_cheapest(tmp_path):
    """Dev chooses, whatever the test says; a faster model counts where its difference on dev can be chance."""
    best = row("large, trained", HALF, MORE, milliseconds=9.0, start="large", seconds=60.0, steps=40, best_step=20)
    far = row("tiny", MORE, HALF, milliseconds=0.1, start="tiny")
    near = row("small", [0.4] * 60, NEAR, milliseconds=3.0, start="small")
    rows = [row("large", HALF, [0.6] * 60, milliseconds=9.0, start="large"), best, far, near]
    rows += [row("BM25", [0.1] * 60), row("large, trained + BM25", [0.2] * 60)]
    assert best_of(rows) is best and cheapest_of(rows, best) is near
    lines = advice_lines(rows, best, prepared(tmp_path), quick=False)
    assert lines[0] == "Use large, trained: nDCG@10 50.0 on 60 held-out questions, the best of 4 on dev."
    assert lines[1].startswith("small cannot be distinguished from it on dev (-2.5 points (95 % interval -")
    assert lines[1].endswith("and takes 3.0 ms per text instead of 9.0.")
    assert lines[2] == "Next: serve it: embrew serve OUT/export."
    del rows[3]
    assert advice_lines(rows, best, prepared(tmp_path), quick=False)[1].startswith("No faster encoder is within chance")


def test_an_untrained_one_is_the_best(tmp_path):
    """Of equal scores the first, which needs no training; a training that dev did not choose is no model."""
    first = row("ready", HALF, MORE, milliseconds=1.0, start="ready")
    kept = row("ready, trained", HALF, MORE, milliseconds=1.0, start="ready", seconds=60.0, steps=40, best_step=0)
    rows = [first, kept, row("BM25", HALF, [0.95] * 60), row("ready + BM25", [0.6] * 60, MORE)]
    assert best_of(rows) is first and cheapest_of(rows, first) is first
    lines = advice_lines(rows, first, prepared(tmp_path, train_pairs=120, test_queries=20), quick=False)
    assert lines[0] == (
        "BM25, which compares words and needs no model, is the best on dev: nDCG@10 50.0 on 20 held-out questions; "
        "ready alone, the best encoder of 1, has 50.0."
    )
    fused = [*rows[:-1], row("ready + BM25", [0.6] * 60, [0.97] * 60)]
    assert advice_lines(fused, first, prepared(tmp_path), quick=False)[0] == (
        "Use ready fused with BM25 (embrew search OUT/encoder --index DIR --hybrid), the best on dev: nDCG@10 60.0 on "
        "60 held-out questions; ready alone, the best encoder of 1, has 50.0."
    )
    assert "training did not improve it on dev: a lower rate may" in lines[2]
    assert "give more than 120 pairs" in lines[2] and "20 questions show large differences only" in lines[2]
    assert "quick run" in advice_lines(rows, first, prepared(tmp_path), quick=True)[2]
    last = row("other, trained", HALF, MORE, milliseconds=1.0, start="other", seconds=60.0, steps=40, best_step=40)
    assert "give more --minutes" in advice_lines([last, *rows[-2:]], last, prepared(tmp_path), quick=False)[2]


def test_made_questions_are_called_so(tmp_path):
    """Without a user's question in dev and test, the first line says so and does not name BM25; the last one asks."""
    best = row("ready", HALF, MORE, milliseconds=1.0, start="ready")
    rows = [best, row("BM25", HALF, [0.95] * 60), row("ready + BM25", HALF, [0.97] * 60)]
    for writer, words in (({"questions": {"writer": "w"}}, "questions that a model wrote"), ({}, "first sentences")):
        counts = {"train_pairs": 0, "test_queries": 60}
        data = Prepared(tmp_path, {"counts": counts, "questions_made": True, "made_of": writer})
        lines = advice_lines(rows, best, data, quick=False)
        assert lines[0] == f"Use ready: nDCG@10 50.0 on 60 held-out {words}, the best of 1 on dev."
        assert lines[2] == "Next: give 50 or more questions of users, with answers (--pairs): they ask other ones."
        assert named_first(rows, best, data) is best, "which the page's table marks"
    assert named_first(rows, best, prepared(tmp_path)) is rows[-1]


def test_steps_are_what_the_minutes_allow(tmp_path):
    """By hand: shares of the time left by evaluations, at most the epochs, and never less than one step."""
    chosen = read_defaults().methods["lbr"]  # half and half; 3 and 5 epochs; batches of 8 and 32
    counts = {"train_passages": 0, "train_pairs": 1000, "made_pairs": 0}
    data = Prepared(tmp_path, {"counts": counts})
    stages = [
        {"name": "learn", "objective": {"type": "bottleneck"}, "data": {"path": "x"},
         "training": {"per_device_train_batch_size": 8}},
        {"name": "contrast", "objective": {"type": "contrastive"}, "data": {"path": "x"}, "batch": {"size": 32}},
    ]  # fmt: skip
    recipe = Recipe.from_values({"encoder": {"model": "nano", "pooling": {"mode": "mean"}}, "stages": stages})

    def steps(minutes: float, dev_seconds: float) -> tuple[list[int], int]:
        defaults = read_defaults([f"adapt.minutes={minutes}", "adapt.evaluations=5"])
        return recipes.steps_in_time(recipe, chosen, data, defaults, dev_seconds, [2.0, 10.0])

    # 600 s less 7 evaluations of 10 s: 265 s for each stage
    assert steps(10, 10.0) == ([132, 26], 5)
    assert steps(1000, 10.0) == ([math.ceil(3 * 1000 / 8), math.ceil(5 * 1000 / 32)], 5)
    assert steps(10, 60.0) == ([75, 15], 3), "half of the time for 5 evaluations, 2 of them around the stages"
    assert steps(0.01, 60.0) == ([1, 1], 1)


def test_a_step_is_timed_on_short_and_long_rows():
    """A quarter of a sorted batch has nearly the batch's mean length, which its first quarter has not."""
    lengths = [number**2 for number in range(32)]
    whole = sum(lengths) / 32
    for count in (8, 16, 32):
        few = recipes.spread(lengths, count)
        assert len(set(few)) == count and abs(sum(few) / count - whole) < 0.1 * whole
    assert sum(lengths[:8]) / 8 < 0.1 * whole
    assert recipes.spread(lengths, 2) == [lengths[8], lengths[24]]
    assert recipes.spread([7, 9], 32) == [7, 9]


@pytest.fixture
def beir(tmp_path) -> Path:
    """Questions after one number each; the last one's judgement is another document."""
    texts = [f"number{i} stands alone here" for i in range(12)]
    return write_beir(
        tmp_path / "beir",
        [{"_id": f"d{i:02}", "title": "", "text": text} for i, text in enumerate(texts)],
        [{"_id": f"q{i}", "text": f"Where is number{i}?"} for i in range(4)],
        [*((f"q{i}", f"d{i:02}", 1) for i in range(3)), ("q3", "d11", 1)],
    )


def test_bm25_scores_are_kept(beir, tmp_path):
    found = score_bm25(beir, "test", tmp_path / "out")
    assert found.main_score == pytest.approx(3 / 4) and found.examples["rank"] == [1, 1, 1, 12]
    again = score_bm25(beir, "test", tmp_path / "out")
    assert again.seconds == found.seconds and again.examples == found.examples


class Reversed:
    """Documents in the order of their numbers, the last one first, whatever the query is."""

    prompts: ClassVar[dict[str, str]] = {}

    def encode_query(self, inputs: list[str], **_: Any) -> np.ndarray:
        return np.tile(np.float32([1, 0]), (len(inputs), 1))

    def encode_document(self, inputs: list[str], **_: Any) -> np.ndarray:
        angles = [0.1 * (12 - int(text.split()[0].removeprefix("number"))) for text in inputs]
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    encode = encode_document


def test_an_encoder_fused_with_bm25_is_scored_once(beir, tmp_path):
    """Of 12 documents the vectors rank number i as 12 - i, and BM25 finds the one with the query's word alone."""
    options: Any = {"name": "reversed", "batch_tokens": 100}
    found = score_hybrid(Reversed, beir, "test", tmp_path / "out", **options)
    # q0 asks for d00: 1/(60+1) + 1/(60+12) is more than 1/(60+1) of d11; q3 asks for number3, and d11 is judged
    assert found.examples["top"][0][:2] == ["d00", "d11"] and found.examples["rank"] == [1, 1, 1, 2]
    kept = score_hybrid(lambda: pytest.fail("opened again"), beir, "test", tmp_path / "out", **options)
    assert kept.examples == found.examples
