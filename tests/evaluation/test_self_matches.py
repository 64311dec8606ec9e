"""Documents that are the query itself: left out of its ranking by id and text, by id alone where a suite says so."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from embrew.evaluation import evaluate, find_task, read_suite
from embrew.evaluation.results import result_file
from embrew.report.comparison import compare_models, models_of
from tests.rows import write_beir


class Hashed:
    """Each text has a fixed random vector; equal texts, equal vectors."""

    prompts: ClassVar[dict[str, str]] = {}

    def encode(self, inputs: list[str], **_: Any) -> np.ndarray:
        seeds = [int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little") for text in inputs]
        return np.stack([np.random.default_rng(seed).normal(size=16) for seed in seeds]).astype(np.float32)

    encode_query = encode_document = encode


class Angles(Hashed):
    """The last word of a text is its angle in degrees."""

    def encode(self, inputs: list[str], **_: Any) -> np.ndarray:
        last = [text.split()[-1] for text in inputs]
        angles = np.deg2rad([0.0 if word == "word" else float(word) for word in last])  # rag measures "word"
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    encode_query = encode_document = encode


ANSWERS = [{"_id": "x", "text": "other 60"}, {"_id": "y", "text": "answer 15"}]


@pytest.mark.parametrize(
    "own",
    [
        {"_id": "a", "text": "claim 0"},
        {"_id": "a", "text": "0", "title": "claim"},  # title and text are what is embedded
        {"_id": "a", "text": "claim 0", "title": "subject"},  # as in ArguAna
        {"_id": "a", "text": "Claim \n 0"},
    ],
)
def test_a_query_does_not_find_itself(tmp_path, own):
    folder = write_beir(tmp_path / "data", [own, *ANSWERS], [{"_id": "a", "text": "claim 0"}], [("a", "y", 1)])
    (result,) = evaluate(Angles(), [folder], output_dir=tmp_path / "out")
    assert result.main_score == result.scores["mrr_at_10"] == 1.0
    assert result.counts["self_matches"] == 1 and result.counts["documents"] == 3
    assert result.examples["top"] == [["y", "x"]] and result.examples["rank"] == [1]
    written = json.loads(result_file(tmp_path / "out", "data", "test").with_suffix(".run.json").read_text())
    assert written["counts"]["self_matches"] == 1


@pytest.mark.parametrize("grade", [0, 1])
def test_a_judged_document_is_ranked(tmp_path, grade):
    """The first query's own document is judged, the second's is not; `y` is relevant for both."""
    corpus = [{"_id": "a", "text": "claim 0"}, {"_id": "b", "text": "claim 1"}, *ANSWERS]
    queries = [{"_id": "a", "text": "claim 0"}, {"_id": "b", "text": "claim 1"}]
    folder = write_beir(tmp_path / "data", corpus, queries, [("a", "a", grade), ("a", "y", 1), ("b", "y", 1)])
    (result,) = evaluate(Angles(), [folder])
    assert result.examples["top"] == [["a", "b", "y", "x"], ["a", "y", "x"]]
    assert result.counts["self_matches"] == 1


def test_ids_of_two_numberings_say_nothing(tmp_path):
    """Queries and documents are both numbered from 1: by default nothing is left out, by `ignore_identical_ids` all."""
    corpus = [{"_id": "1", "text": "right 1"}, {"_id": "2", "text": "wrong 40"}, {"_id": "3", "text": "right 91"}]
    queries = [{"_id": "1", "text": "what is at 0"}, {"_id": "2", "text": "what is at 90"}]
    write_beir(tmp_path / "both", corpus, queries, [("1", "1", 1), ("2", "3", 1)])
    suite = tmp_path / "suite.yaml"
    suite.write_text("tasks: [{data: both}, {data: both, name: mtebs, ignore_identical_ids: true}]\n")
    by_default, by_id = evaluate(Angles(), read_suite(suite, data=tmp_path))
    assert by_default.main_score == 1.0 and by_default.counts["self_matches"] == 0
    assert by_id.examples["top"] == [["2", "3"], ["3", "1"]] and by_id.counts["self_matches"] == 2
    assert by_id.main_score == pytest.approx(0.5), "the right answer of query 1 is lost, as mteb loses it"
    with pytest.raises(ValueError, match="ignore_identical_ids='yes'; give true or false"):
        evaluate(Angles(), [find_task(tmp_path / "both", ignore_identical_ids="yes")])


@pytest.mark.skipif("EMBREW_DATA" not in os.environ, reason="needs the data folder EMBREW_DATA names")
@pytest.mark.parametrize("by_id", [False, True])
def test_cranfield_as_mteb_counts_it(by_id):
    """225 queries and 1,400 documents numbered from 1: all documents are ranked by hand and scored by mteb."""
    evaluators = pytest.importorskip("mteb._evaluators.retrieval_evaluator")
    pytest.importorskip("pytrec_eval")
    from embrew.data.beir import read_beir

    (result,) = evaluate(Hashed(), [find_task("$EMBREW_DATA/cranfield", ignore_identical_ids=by_id)])
    data = read_beir(Path(os.environ["EMBREW_DATA"]) / "cranfield", "test")
    deleted = [query for query, grades in data.qrels.items() if query in grades]
    assert deleted, "ids alone would delete right answers"
    queries = Hashed().encode([data.queries[query] for query in data.qrels])
    documents = Hashed().encode([document.content for document in data.corpus])
    queries, documents = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (queries, documents))
    cosines = (queries @ documents.T).astype(float)
    ranking = {
        query: {document.id: float(score) for document, score in zip(data.corpus, row, strict=True)}
        for query, row in zip(data.qrels, cosines, strict=True)
    }
    theirs = evaluators.RetrievalEvaluator.evaluate(None, data.qrels, ranking, [10], ignore_identical_ids=by_id)
    assert result.scores["ndcg_at_10"] == pytest.approx(theirs.ndcg["NDCG@10"], abs=1e-5)
    assert result.counts["self_matches"] == (225 if by_id else 0)


def test_as_many_ranks_are_kept_as_without(tmp_path):
    """The query itself is first of 102 documents: rank 100 is the 101st, and the last is beyond the known ranks."""
    corpus = [{"_id": f"{i:03}", "text": f"text {i / 2}"} for i in range(102)]
    queries = [{"_id": "000", "text": "text 0.0"}, {"_id": "q", "text": "text 0.0"}]
    (result,) = evaluate(
        Angles(),
        [write_beir(tmp_path / "data", corpus, queries, [("000", "100", 1), ("000", "101", 0), ("q", "099", 1)])],
    )
    assert result.examples["rank"] == [100, 100]
    write_beir(tmp_path / "far", corpus, queries, [("000", "101", 1), ("q", "100", 1)])
    (result,) = evaluate(Angles(), [tmp_path / "far"])
    assert result.examples["rank"] == [None, None]


def test_results_with_and_without_self_matches_are_not_compared(tmp_path):
    """A result of a version that ranked them is of another protocol; where there are none, it is not."""
    corpus = [{"_id": "a", "text": "claim 0"}, *ANSWERS]
    for name, text in (("own", "claim 0"), ("none", "claim 1")):
        folder = write_beir(tmp_path / name, corpus, [{"_id": "a", "text": text}], [("a", "y", 1)])
        for version in ("before", "now"):
            evaluate(Angles(), [folder], output_dir=tmp_path / version)
        path = result_file(tmp_path / "before", name, "test")
        result, run = (json.loads(file.read_text()) for file in (path, path.with_suffix(".run.json")))
        del result["sha256"], result["parts"], run["sha256"], run["counts"]["self_matches"]
        path.write_text(json.dumps(result))
        path.with_suffix(".run.json").write_text(json.dumps(run))
    compared = compare_models(models_of([str(tmp_path / "before"), str(tmp_path / "now")]))
    assert [task.first.task for task in compared.tasks] == ["none"]
    ((task, reason),) = compared.left_out
    assert task == "own test" and "another number of examples (self_matches: 1, not 0)" in reason


def test_bm25_leaves_them_out_too(tmp_path):
    from embrew.adapting.baselines import score_bm25

    corpus = [
        {"_id": "a", "text": "foxes hunt small mice"},
        {"_id": "b", "text": "mice fear foxes"},
        {"_id": "c", "text": "ships sail"},
    ]
    queries = [{"_id": "a", "text": "foxes hunt small mice"}]
    result = score_bm25(write_beir(tmp_path / "data", corpus, queries, [("a", "b", 1)]), "test", tmp_path / "out")
    assert result.main_score == 1.0 and result.counts["self_matches"] == 1


def test_an_answer_is_not_read_from_the_question(tmp_path):
    """The nearest document of question `a` is itself; `y` holds the answer."""
    corpus = [{"_id": "a", "text": "question 0"}, {"_id": "y", "text": "Bonn 15"}, {"_id": "z", "text": "Rome 60"}]
    queries = [
        {"_id": "a", "text": "question 0", "answers": ["Bonn"]},
        {"_id": "q", "text": "at 61", "answers": "Rome"},
    ]
    folder = write_beir(tmp_path / "data", corpus, queries, [("a", "y", 1), ("q", "z", 1)])
    (result,) = evaluate(Angles(), [find_task(folder, kind="rag")])
    assert result.main_score == 1.0 and result.counts["self_matches"] == 1
    assert result.examples["retrieved"] == ["y", "z"]
    alone = write_beir(tmp_path / "alone", corpus[:1], queries[:1], [("a", "y", 0)])
    with pytest.raises(ValueError, match="a question is the only document of the corpus; give others"):
        evaluate(Angles(), [find_task(alone, kind="rag")])
