"""Scores by text length, worked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embrew.evaluation.find import find_task
from embrew.evaluation.task import GridCache
from embrew.report.lengths import FEWEST, name_of, scores_by_length
from tests.report.tasks import retrieval, subject_of, write_rows


def test_bins_hold_their_upper_edge() -> None:
    assert name_of(np.array([0, 1, 8, 9, 512, 513])).tolist() == [0, 0, 0, 1, 6, 7]


def test_retrieval_counts_the_words_of_relevant_documents(tmp_path: Path) -> None:
    task = retrieval(tmp_path / "pets", queries=30)  # document i has i + 5 words: 4 up to 8, 8 up to 16, 16 up to 32
    scores = [1.0 if i < 10 else 0.25 for i in range(30)]
    names = [f"q{i}" for i in range(30)]
    turned = {"pets": {"score": scores[::-1], "query": names[::-1]}}  # names say which query a score is of
    found = scores_by_length(
        *_of(task, {"A": {"pets": {"score": scores}}, "B": {"pets": {"score": scores}}}), GridCache()
    )
    assert [(one.model, one.words, one.examples, one.score) for one in found] == [
        ("A", "17-32", 16, 0.25),
        ("B", "17-32", 16, 0.25),
    ]  # 4 and 8 examples are fewer than 10
    assert FEWEST == 10
    assert scores_by_length(*_of(task, {"A": turned, "B": turned}), GridCache())[0].score == 0.25
    assert found[0].metric == "nDCG@10" and found[0].of == "relevant document"


def test_sts_has_the_distance_of_ranks(tmp_path: Path) -> None:
    rows = [{"sentence1": "a b c", "sentence2": "a", "score": float(i)} for i in range(10)]
    task = find_task(write_rows(tmp_path / "pets", rows), kind="sts")
    gold = [float(i) for i in range(10)]
    swapped = [gold[1], gold[0], *gold[2:]]  # two pairs are one rank away: 2 / 10 pairs / 10 ranks
    examples = {
        "A": {"pets": {"predicted": gold, "gold": gold}},
        "B": {"pets": {"predicted": swapped, "gold": gold}},
    }
    found = scores_by_length(*_of(task, examples), GridCache())
    assert [(one.model, one.words, one.of) for one in found] == [("A", "1-8", "sentence"), ("B", "1-8", "sentence")]
    assert [one.score for one in found] == pytest.approx([0, 0.02])
    half = 1.96 * np.std([0.1, 0.1, *[0] * 8], ddof=1) / np.sqrt(10)
    assert found[1].high - found[1].score == pytest.approx(half)


def test_tasks_without_data_are_left_out(tmp_path: Path) -> None:
    comparison, _ = _of(retrieval(tmp_path / "pets"), {name: {"pets": {"score": [0.0] * 12}} for name in "AB"})
    assert scores_by_length(comparison, {}, GridCache()) == []


def _of(task, examples):
    subject = subject_of({"pets": task}, examples)
    return subject.comparison, subject.data
