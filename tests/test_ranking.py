"""BM25 by its formula, and the fusion of rankings by its sum."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embrew.ranking import BM25, reciprocal_rank_fusion


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


def test_bm25_ranks_as_its_formula_does():
    draw = np.random.default_rng(3)
    vocabulary = [f"word{i}" for i in range(30)]
    documents = [" ".join(draw.choice(vocabulary, size=int(draw.integers(3, 30)))) for _ in range(40)]
    queries = [" ".join(draw.choice(vocabulary, size=4, replace=False)) for _ in range(10)] + ["unknown things"]
    scores, rows = BM25(documents).top(queries, 40)
    for query, own, found in zip(queries, scores, rows, strict=True):
        expected = np.array(bm25(documents, query))[found]
        assert (np.diff(expected) <= 1e-5).all(), query
        assert own == pytest.approx(expected, abs=1e-4)
    assert rows[-1].tolist() == list(range(40)), "equal scores keep the order of the documents"


@pytest.mark.parametrize("texts", [["a", "b c"], ["...", "!"]])
def test_texts_without_words(texts):
    """The library takes words of two letters or more; without any, all scores are 0."""
    scores, rows = BM25(texts).top(["alpha", "a", ""], 2)
    assert scores.tolist() == [[0, 0]] * 3 and rows.tolist() == [[0, 1]] * 3


RANKINGS = st.lists(st.lists(st.integers(0, 30), unique=True, max_size=20), min_size=1, max_size=3)


@given(rankings=RANKINGS, k=st.integers(1, 40))
def test_fused_by_the_sum_of_reciprocal_ranks(rankings, k):
    items = sorted({item for ranking in rankings for item in ranking})
    sums = {item: sum(1 / (61 + ranking.index(item)) for ranking in rankings if item in ranking) for item in items}
    found = reciprocal_rank_fusion(rankings, k)
    assert len(found) == min(k, len(items)) and all(score == pytest.approx(sums[item]) for item, score in found)
    kept = {item for item, _ in found}
    assert all(sums[item] <= found[-1][1] + 1e-12 for item in items if item not in kept)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
