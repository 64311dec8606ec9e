"""The sample of the tasks' texts: what it holds, and that each text is encoded once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embrew.evaluation.find import find_task
from embrew.report.sample import Text, encode_sample, sample_texts
from tests.report.tasks import retrieval, write_rows


def test_each_text_is_encoded_once_by_the_method_of_its_side(tmp_path: Path, bag_of_words) -> None:
    data = {("pets", "test"): retrieval(tmp_path / "pets")}
    samples = sample_texts(data, texts=40)
    vectors = encode_sample(bag_of_words, data, samples)
    (sample,) = samples.values()
    calls = [(side, count) for side, count, _ in bag_of_words.calls]
    assert sorted(calls) == [("document", 30), ("query", 8)]  # a fifth of 40 are queries
    assert len(set(sample.every)) == len(sample.every) == 38
    for query, document in sample.pairs:
        assert document.text.startswith(query.text)  # the relevant one
        own = bag_of_words.encode([query.text])[0]
        assert np.allclose(vectors["pets", "test"].of([query])[0], own / np.linalg.norm(own))


def test_the_sample_is_limited_seeded_and_shared_among_tasks(tmp_path: Path) -> None:
    data = {(name, "test"): retrieval(tmp_path / name, seed=i) for i, name in enumerate(("a", "b"))}
    samples = sample_texts(data, texts=20)
    assert [len(sample.every) for sample in samples.values()] == [10, 10]
    assert samples == sample_texts(data, texts=20)
    assert samples != sample_texts(data, texts=20, seed=1)


def test_positive_pairs_of_sts_score_above_4_and_differ(tmp_path: Path) -> None:
    rows = [
        {"sentence1": "a cat", "sentence2": "the cat", "score": 4.5},
        {"sentence1": "a dog", "sentence2": "the dog", "score": 4.0},
        {"sentence1": "a cow", "sentence2": "a cow", "score": 5.0},
    ]
    data = {("sts", "test"): find_task(write_rows(tmp_path / "sts", rows), kind="sts")}
    (sample,) = sample_texts(data).values()
    assert sample.pairs == ((Text("text", "a cat"), Text("text", "the cat")),)
    assert [text.text for text in sample.texts] == ["a cat", "the cat", "a dog", "the dog", "a cow"]
    assert sample.ids == ("1", "1", "2", "2", "3")


@pytest.mark.parametrize("most", [3, 100])
def test_candidates_are_whole_rows(tmp_path: Path, most: int) -> None:
    rows = [{"query": f"q{i}", "positive": [f"p{i}"], "negative": [f"n{i}"]} for i in range(4)]
    data = {("rank", "test"): find_task(write_rows(tmp_path / "rank", rows), kind="reranking")}
    (sample,) = sample_texts(data, texts=most).values()
    assert len(sample.pairs) == (1 if most == 3 else 4)
    assert len(sample.every) == 3 * len(sample.pairs)
    assert all(left.text[1:] == right.text[1:] and right.text[0] == "p" for left, right in sample.pairs)


def test_a_labelled_text_counts_once(tmp_path: Path) -> None:
    rows = [{"text": text, "label": label} for text, label in (("one", "a"), ("two", "b"), ("one", "b"))]
    data = {("topics", "test"): find_task(write_rows(tmp_path / "topics", rows), kind="clustering")}
    (sample,) = sample_texts(data).values()
    assert (sample.ids, sample.labels, sample.pairs) == (("1", "2"), ("a", "b"), ())


def test_empty_documents_are_left_out(tmp_path: Path, bag_of_words) -> None:
    task = retrieval(tmp_path / "pets", documents=3, queries=2)
    rows = [{"_id": "d0", "text": " "}, {"_id": "d1", "text": "cats purr"}, {"_id": "d2", "text": "dogs"}]
    write_rows(tmp_path / "pets", rows, "corpus.jsonl")
    (sample,) = sample_texts({("pets", "test"): task}).values()
    assert sample.ids == ("d1", "d2") and [document.text for _, document in sample.pairs] == ["cats purr"]
