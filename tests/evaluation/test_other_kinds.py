"""Clustering, pair classification, reranking and summarisation, on data whose scores can be worked out by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embrew.evaluation import evaluate
from embrew.evaluation.kinds.retrieval import score_reranking
from embrew.evaluation.kinds.similarity import best_threshold, score_pair_classification
from tests.rows import write_rows


def task(folder, rows):
    return write_rows(folder / "test.jsonl", rows).parent


def test_clusters_of_words(bag_of_words, tmp_path):
    words = {"a": "cat", "b": "dog", "c": "fish"}
    rows = [{"text": f"{word} {word}", "label": label} for label, word in words.items() for _ in range(20)]
    (result,) = evaluate(bag_of_words, [task(tmp_path / "x", rows)])
    assert (result.kind, result.main_score) == ("clustering", pytest.approx(1.0))
    assert result.counts == {"texts": 60, "classes": 3}
    assert len(result.scores["v_measures"]) == 10
    same = [{"text": "cat", "label": label} for label in ("a", "b") for _ in range(20)]
    (result,) = evaluate(bag_of_words, [task(tmp_path / "y", same)])
    assert result.main_score == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(ValueError, match="clustering needs two classes"):
        evaluate(bag_of_words, [task(tmp_path / "z", same[:3])])


def test_pairs(bag_of_words, tmp_path):
    rows = [
        {"sentence1": "a cat", "sentence2": "a cat", "label": 1},  # cosine 1
        {"sentence1": "a cat", "sentence2": "a dog", "label": 0},  # 1/2
        {"sentence1": "a big cat", "sentence2": "a dog runs", "label": 1},  # 1/3
        {"sentence1": "cat", "sentence2": "dog", "label": 0},  # 0
    ]
    (result,) = evaluate(bag_of_words, [task(tmp_path / "x", rows)])
    # precision 1 at the first positive, 2/3 at the second
    assert (result.kind, result.main_score) == ("pair_classification", pytest.approx((1 + 2 / 3) / 2))
    assert result.scores["cosine_f1"] == pytest.approx(0.8)  # the first three called positive
    assert result.scores["cosine_accuracy"] == pytest.approx(0.75)
    with pytest.raises(ValueError, match="needs the labels 0 and 1; found 1, 2"):
        score_pair_classification(bag_of_words, {"sentence1": ["a"], "sentence2": ["b"], "label": ["1", "2"]})


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.4]), st.integers(0, 1)), min_size=1, max_size=12))
def test_the_best_threshold_is_the_best_of_all(pairs):
    scores, gold = np.array([score for score, _ in pairs]), np.array([label for _, label in pairs])
    every = [((scores >= threshold) == gold).mean() for threshold in (*scores, 1.0)]
    threshold, accuracy = best_threshold(scores, gold)
    assert accuracy == pytest.approx(max(every)) == pytest.approx(((scores >= threshold) == gold).mean())


def test_reranking(bag_of_words, tmp_path):
    rows = [
        {"query": "cat", "positive": ["cat"], "negative": ["dog", "fish"]},  # found first
        {"query": "dog", "positive": ["a dog barks", "birds fly"], "negative": ["dog", "fish"]},  # ranks 2 and 3
    ]
    (result,) = evaluate(bag_of_words, [task(tmp_path / "x", rows)])
    second = (1 / 2 + 2 / 3) / 2  # "birds fly" and "fish" tie at 0; the alphabet decides
    assert (result.kind, result.main_score) == ("reranking", pytest.approx((1 + second) / 2))
    assert result.scores["mrr_at_10"] == pytest.approx((1 + 1 / 2) / 2)
    assert result.counts == {"queries": 2, "documents": 7}
    assert [side for side, _, _ in bag_of_words.calls] == ["query", "document"]
    assert result.examples["query"] == ["1", "2"]
    assert result.examples["rank"] == [1, 2]
    assert result.examples["top"] == [
        ["positive 1", "negative 1", "negative 2"],
        ["negative 1", "positive 1", "positive 2", "negative 2"],
    ]


def test_a_candidate_in_both_lists_is_a_positive_and_ten_are_kept(bag_of_words, tmp_path):
    rows = [{"query": "cat", "positive": ["a b", "cat"], "negative": ["cat", *(f"dog {i}" for i in range(12))]}]
    (result,) = evaluate(bag_of_words, [task(tmp_path / "x", rows)])
    assert result.examples["top"][0][:2] == ["positive 2", "positive 1"]
    assert len(result.examples["top"][0]) == 10


def test_ties_know_no_label(bag_of_words):
    scores = [
        score_reranking(bag_of_words, {"query": ["x"], "positive": [positive], "negative": [negative]})["main_score"]
        for positive, negative in ((["a"], ["b"]), (["b"], ["a"]))
    ]
    assert scores == [1.0, 0.5]  # "a" ranks first whatever it is


def test_a_query_needs_both(bag_of_words):
    with pytest.raises(ValueError, match="query 2 has 1 positives, 0 negatives; give both"):
        rows = {"query": ["x", "y"], "positive": [["a"], ["a"]], "negative": [["b"], []]}
        score_reranking(bag_of_words, rows)


def test_summaries(bag_of_words, tmp_path, caplog):
    machine = ["a cat sleeps", "a cat barks", "fish swim"]  # largest cosines to a human summary: 1, 2/3, 0
    row = {"text": "t", "human_summaries": ["a cat sleeps", "cats"], "machine_summaries": machine}
    rows = [{**row, "relevance": [3.0, 2.0, 1.0]}, {**row, "relevance": [1, 2, 3]}, {**row, "relevance": [1, 1, 1]}]
    (result,) = evaluate(bag_of_words, [task(tmp_path / "x", rows)])
    assert (result.kind, result.main_score) == ("summarization", pytest.approx(0.0))  # +1 and -1
    assert result.scores["texts_left_out"] == 1
    assert "1 texts have machine summaries of one grade only" in caplog.text
    with pytest.raises(ValueError, match="text 1: 2 human summaries, 3 machine summaries and 2 grades"):
        evaluate(bag_of_words, [task(tmp_path / "y", [{**row, "relevance": [1, 2]}])])
    with pytest.raises(ValueError, match="holds a str, not a list of numbers"):
        evaluate(bag_of_words, [task(tmp_path / "z", [{**row, "relevance": "1"}])])


def test_another_column_can_be_judged(bag_of_words, tmp_path):
    from embrew.evaluation import find_task

    rows = [{"text": "same", "subject": word, "label": word} for word in ("cat", "dog") for _ in range(8)]
    folder = task(tmp_path / "x", rows)
    whole, subject = evaluate(
        bag_of_words, [find_task(folder), find_task(folder, name="subjects", columns={"text": "subject"})]
    )
    assert [result.main_score for result in (whole, subject)] == pytest.approx([0.0, 1.0], abs=1e-6)
    assert list(pairwise([whole.task, subject.task])) == [("x", "subjects")]
