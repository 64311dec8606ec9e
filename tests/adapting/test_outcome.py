"""What is said of scores, how many steps time allows, and BM25 by its formula."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew.adapting import recipes
from embrew.adapting.baselines import bm25_ranking, score_bm25
from embrew.adapting.defaults import read_defaults
from embrew.adapting.outcome import Row, first_lines
from embrew.adapting.prepare import Prepared
from embrew.evaluation import Result
from embrew.recipe import Recipe


def result(scores: list[float]) -> Result:
    names = [f"q{i}" for i in range(len(scores))]
    mean = sum(scores) / len(scores)
    return Result("t", "test", "retrieval", mean, {"ndcg_at_10": mean}, 1.0, {}, {"score": scores, "query": names})


def row(name: str, scores: list[float], **more: Any) -> Row:
    return Row(name=name, dev=result(scores), test=result(scores), **more)


@pytest.mark.parametrize(
    ("trained", "said"),
    [
        ([0.9] * 60, "Training paid: contrast has nDCG@10 90.0 against 50.0 of untrained, mean, +40.0 points"),
        (
            [0.6, 0.4, 0.53] * 20,
            "Training has not clearly beaten the best untrained pooling: contrast has nDCG@10 51",
        ),
        ([0.1] * 60, "Training has not beaten the best untrained pooling: contrast has nDCG@10 10.0"),
    ],
)
def test_the_first_line(trained: list[float], said: str, tmp_path: Path) -> None:
    data = Prepared(tmp_path, {"counts": {"train_pairs": 120, "test_queries": 60}})
    best = row("contrast", trained, stage=tmp_path / "run" / "contrast", steps=40, kept=40)
    lines = first_lines([row("untrained, mean", [0.5] * 60), best, row("BM25", [0.7] * 60)], best, data, quick=False)
    assert lines[0].startswith(said) and "on 60 held-out questions" in lines[0]
    advice = [line for line in lines if line.startswith("What to change")]
    assert len(advice) == (0 if "paid" in said else 1)
    assert ("more --minutes may give more" in lines[1]) == ("paid" in said)
    if advice:
        assert "give more --minutes" in advice[0] and "120 pairs are few" in advice[0]
    assert ("more than these" in lines[-1]) == (max(trained[0], 0.5) < 0.7)
    early = row("contrast", [0.1] * 60, stage=tmp_path / "run" / "contrast", steps=40, kept=8)
    lines = first_lines([row("untrained, mean", [0.5] * 60), early, row("BM25", [0.7] * 60)], early, data, quick=True)
    assert "stages.contrast.training.learning_rate=5e-5" in lines[1] and "quick run" in lines[-1]


def test_steps_are_what_the_minutes_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(recipes, "seconds_per_step", lambda _: iter([2.0, 10.0]))

    def steps(minutes: float, dev_seconds: float) -> tuple[list[int], int]:
        defaults = read_defaults([f"adapt.minutes={minutes}", "adapt.evaluations=5"])
        return recipes.steps_in_time(recipe, chosen, data, defaults, dev_seconds)[:2]

    # 600 s less 7 evaluations of 10 s: 265 s for each stage
    assert steps(10, 10.0) == ([132, 26], 5)
    assert steps(1000, 10.0) == ([math.ceil(3 * 1000 / 8), math.ceil(5 * 1000 / 32)], 5)
    assert steps(10, 60.0) == ([75, 15], 3), "half of the time for 5 evaluations, 2 of them around the stages"
    assert steps(0.01, 60.0) == ([1, 1], 1)


def test_a_step_is_timed_on_short_and_long_rows() -> None:
    """A quarter of a sorted batch has nearly the batch's mean length, which its first quarter has not."""
    lengths = [number**2 for number in range(32)]
    whole = sum(lengths) / 32
    for count in (8, 16, 32):
        few = recipes.spread(lengths, count)
        assert len(set(few)) == count and abs(sum(few) / count - whole) < 0.1 * whole
    assert sum(lengths[:8]) / 8 < 0.1 * whole
    assert recipes.spread(lengths, 2) == [lengths[8], lengths[24]]
    assert recipes.spread([7, 9], 32) == [7, 9]


def bm25(documents: list[str], query: str) -> list[float]:
    """Lucene's BM25 with k1 = 1.5 and b = 0.75."""
    split = [document.lower().split() for document in documents]
    mean, scores = sum(map(len, split)) / len(split), []
    for words in split:
        counts, score = Counter(words), 0.0
        for word in query.lower().split():
            having = sum(word in other for other in split)
            if having:
                idf = math.log(1 + (len(split) - having + 0.5) / (having + 0.5))
                score += idf * counts[word] / (counts[word] + 1.5 * (0.25 + 0.75 * len(words) / mean))
        scores.append(score)
    return scores


def test_bm25_ranks_as_its_formula_does() -> None:
    draw = np.random.default_rng(3)
    vocabulary = [f"word{i}" for i in range(30)]
    documents = [" ".join(draw.choice(vocabulary, size=int(draw.integers(3, 30)))) for _ in range(40)]
    queries = [" ".join(draw.choice(vocabulary, size=4, replace=False)) for _ in range(10)] + ["unknown things"]
    ranking = bm25_ranking(documents, queries, most=40)
    for query, found in zip(queries, ranking, strict=True):
        scores = np.array(bm25(documents, query))[found]
        assert (np.diff(scores) <= 1e-5).all(), query
    assert ranking[-1].tolist() == list(range(40)), "equal scores keep the order of the documents"


def test_bm25_scores_are_kept(tmp_path: Path) -> None:
    texts = [f"number{i} stands alone here" for i in range(12)]
    lines = "".join(json.dumps({"_id": f"d{i:02}", "title": "", "text": text}) + "\n" for i, text in enumerate(texts))
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    (tmp_path / "beir" / "corpus.jsonl").write_text(lines)
    queries = "".join(json.dumps({"_id": f"q{i}", "text": f"Where is number{i}?"}) + "\n" for i in range(4))
    (tmp_path / "beir" / "queries.jsonl").write_text(queries)
    judged = [f"q{i}\td{i:02}\t1" for i in range(3)] + ["q3\td11\t1"]  # the last one is found among equals
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged) + "\n")
    found = score_bm25(tmp_path / "beir", "test", tmp_path / "out")
    assert found.main_score == pytest.approx(3 / 4) and found.examples["rank"] == [1, 1, 1, 12]
    again = score_bm25(tmp_path / "beir", "test", tmp_path / "out")
    assert again.seconds == found.seconds and again.examples == found.examples
