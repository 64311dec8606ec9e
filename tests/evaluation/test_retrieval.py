import math
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embrew.data.beir import Document, RetrievalData
from embrew.evaluation.kinds.retrieval import metrics_by_query, rank, score_retrieval
from embrew.ranking import top


class Lookup:
    """Texts to given vectors, for queries and documents alike."""

    prompts: ClassVar[dict[str, str]] = {}

    def __init__(self, vectors):
        self.vectors = vectors
        self.sizes = []

    def encode_query(self, inputs, **_):
        return np.stack([np.asarray(self.vectors[text], dtype=np.float32) for text in inputs])

    def encode_document(self, inputs, **_):
        self.sizes.append(len(inputs))
        return self.encode_query(inputs)

    encode = encode_query


def metrics(ranking, qrels):
    """Means over queries."""
    return {name: sum(values) / len(values) for name, values in metrics_by_query(ranking, qrels).items()}


def test_metrics_by_hand():
    """Relevant: b with grade 2, d and x with grade 1; found at ranks 2 and 4, x not at all."""
    found = metrics({"q": ["a", "b", "c", "d"]}, {"q": {"b": 2, "d": 1, "x": 1, "a": 0}})
    gained = 2 / math.log2(3) + 1 / math.log2(5)
    ideal = 2 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    assert found == {
        "ndcg_at_10": pytest.approx(gained / ideal),
        "recall_at_10": pytest.approx(2 / 3),
        "mrr_at_10": pytest.approx(1 / 2),
    }


def test_rank_eleven_does_not_count():
    ranking = {"q": [f"d{i}" for i in range(10)] + ["hit"]}
    assert set(metrics(ranking, {"q": {"hit": 1}}).values()) == {0.0}


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_metrics_against_plain_loops(data):
    documents = [f"d{i}" for i in range(15)]
    qrels = {
        query: data.draw(st.dictionaries(st.sampled_from(documents), st.integers(1, 3), min_size=1)) for query in "ab"
    }
    ranking = {query: data.draw(st.permutations(documents)) for query in "ab"}
    expected = {"ndcg_at_10": 0.0, "recall_at_10": 0.0, "mrr_at_10": 0.0}
    for query, grades in qrels.items():
        dcg = ideal = hits = first = 0.0
        for position in range(10):
            grade = grades.get(ranking[query][position], 0)
            dcg += grade / math.log2(position + 2)
            hits += grade > 0
            if grade > 0 and not first:
                first = 1 / (position + 1)
        for position, grade in enumerate(sorted(grades.values(), reverse=True)[:10]):
            ideal += grade / math.log2(position + 2)
        expected["ndcg_at_10"] += dcg / ideal / 2
        expected["recall_at_10"] += hits / len(grades) / 2
        expected["mrr_at_10"] += first / 2
    assert metrics(ranking, qrels) == pytest.approx(expected)


@settings(deadline=None)
@given(
    rows=st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=1, max_size=4)
    ),
    k=st.integers(1, 6),
)
def test_top_is_a_stable_sort(rows, k):
    """Scores of few values, so that nearly all are tied."""
    scores = np.array(rows, dtype=np.float32)
    values, columns = top(scores, k)
    for row, found, best in zip(scores, columns, values, strict=True):
        expected = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        assert found.tolist() == expected
        assert best.tolist() == [row[i] for i in expected]


@settings(deadline=None, max_examples=50)
@given(
    vectors=st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)).filter(any), min_size=1, max_size=30),
    chunk_size=st.integers(1, 12),
    top_k=st.integers(1, 10),
)
def test_ranking_does_not_depend_on_chunks_or_order(vectors, chunk_size, top_k):
    """Exact with ties by id: the oracle sorts all documents by cosine and id."""
    names = [f"{i:02}" for i in range(len(vectors))]
    encoder = Lookup({**dict(zip(names, vectors, strict=True)), "query": (1, 0)})
    corpus = [Document(id=name, text=name) for name in reversed(names)]
    found = rank(encoder, corpus, {"q": "query"}, chunk_size=chunk_size, top_k=top_k)["q"]
    cosines = {
        n: np.float32(v[0]) / np.linalg.norm(np.array(v, np.float32)) for n, v in zip(names, vectors, strict=True)
    }
    assert found == sorted(names, key=lambda name: (-cosines[name], name))[:top_k]
    assert max(encoder.sizes) <= chunk_size


def test_queries_without_documents_count_and_are_reported(caplog):
    corpus = [Document(id="d1", text="a"), Document(id="d2", text="b", title="t")]
    encoder = Lookup({"a": (1, 0), "t b": (0, 1), "find a": (1, 0), "find b": (0, 1)})
    queries = {"q1": "find a", "q2": "find b", "q3": "find a", "q4": "find b"}
    qrels = {"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"gone": 1}, "q4": {"d1": 0}}
    scores = score_retrieval(encoder, RetrievalData(corpus, queries, qrels))
    counts = scores["counts"]
    assert scores["main_score"] == scores["ndcg_at_10"] == pytest.approx(2 / 3)  # q1, q2: 1; q3: 0; q4 is left out
    assert counts == {
        "documents": 2,
        "queries": 3,
        "queries_without_judgement": 1,
        "queries_without_document": 1,
        "self_matches": 0,
    }
    assert "1 queries have no relevant document in the corpus, e.g. 'q3'" in caplog.text
    with pytest.raises(ValueError, match="no query has a relevant document"):
        score_retrieval(encoder, RetrievalData(corpus, queries, {"q4": {"d1": 0}}))


def test_vectors_without_direction_are_an_error():
    encoder = Lookup({"a": (0, 0), "q": (1, 0)})
    with pytest.raises(ValueError, match="1 of 1 vectors of documents are zero or not finite"):
        rank(encoder, [Document(id="1", text="a")], {"q": "q"})


def test_an_empty_document_without_direction_ranks_as_a_stranger():
    """Its cosine is 0: behind every document that resembles the query, before those that point away."""
    encoder = Lookup({"near": (1, 1), "away": (-1, 0), "": (0, 0), "q": (1, 0)})
    corpus = [Document(id="1", text="away"), Document(id="2", text=""), Document(id="3", text="near")]
    assert rank(encoder, corpus, {"q": "q"}) == {"q": ["3", "2", "1"]}


def test_examples_name_the_nearest_documents_and_the_rank_of_the_first_relevant_one():
    """150 documents at known angles from the query: the oracle sorts all of them, and looks no document up."""
    angles = np.random.default_rng(5).permutation(150) / 150
    corpus = [Document(id=f"{i:03}", text=f"text {i}") for i in range(150)]
    vectors = {f"text {i}": (np.cos(angle), np.sin(angle)) for i, angle in enumerate(angles)}
    encoder = Lookup({**vectors, "query": (1, 0)})
    nearest = [f"{i:03}" for _, i in sorted((angle, i) for i, angle in enumerate(angles))]
    # Query z has its documents at ranks 8 and 3, y one at rank 100, x one at rank 101, w none in the corpus.
    places = {"z": (8, 3), "y": (100,), "x": (101,), "w": ()}
    qrels = {query: {nearest[rank - 1]: 1 for rank in ranks} or {"gone": 1} for query, ranks in places.items()}
    qrels["z"][nearest[0]] = 0  # judged as not relevant
    scores = score_retrieval(encoder, RetrievalData(corpus, dict.fromkeys("wxyz", "query"), qrels))
    examples = scores["examples"]
    assert examples["query"] == ["z", "y", "x", "w"]  # in the order of the scores, which is that of the qrels
    assert [score > 0 for score in examples["score"]] == [True, False, False, False]
    assert examples["rank"] == [3, 100, None, None]
    assert examples["top"] == [nearest[:10]] * 4
