"""Queries, pairs and classes that changed between two results, against plain loops and work by hand."""

from __future__ import annotations

import numpy as np
import pytest

from embrew.evaluation import Result
from embrew.report.queries import Confusion, changed_queries, confused_classes, moved_pairs, ranked


def result(kind, scores=None, **examples) -> Result:
    return Result("T", "test", kind, 0.5, scores or {}, 1.0, {}, examples)


def retrieval(*ranks, kind="retrieval") -> Result:
    names = [f"q{i}" for i in range(len(ranks))]
    top = [[f"{name}-{rank}"] for name, rank in zip(names, ranks, strict=True)]
    return result(kind, score=[0.0] * len(ranks), query=names, rank=list(ranks), top=top)


def changes(before, after):
    a, b = ranked(before), ranked(after)
    assert a is not None and b is not None
    return changed_queries(a, b)


def test_queries_are_sorted_by_the_ratio_of_their_ranks():
    # Ratios: 10, 1 (left out), 101, 101/60, 2, 1.25; none is won or lost by the size of the difference.
    found = changes(retrieval(1, 7, None, 60, 2, 50), retrieval(10, 7, 1, None, 1, 40))
    assert [(change.query, change.before, change.after, change.is_won) for change in found] == [
        ("q2", None, 1, True),
        ("q0", 1, 10, False),
        ("q4", 2, 1, True),
        ("q3", 60, None, False),
        ("q5", 50, 40, True),
    ]
    assert (found[0].top_before, found[0].top_after) == (["q2-None"], ["q2-1"])
    assert changes(retrieval(None, 3), retrieval(None, 3)) == []


def test_equal_changes_keep_the_order_of_the_queries():
    assert [change.query for change in changes(retrieval(2, 1, 4), retrieval(1, 2, 2))] == ["q0", "q1", "q2"]


def test_ranks_of_reranking_have_no_limit():
    found = changes(retrieval(1, 300, kind="reranking"), retrieval(200, 1, kind="reranking"))
    assert [change.query for change in found] == ["q1", "q0"]
    assert ranked(retrieval(1, kind="reranking")).depth is None


def test_answers_in_the_nearest_document_are_rank_one():
    rag = {"score": [1.0, 0.0], "question": ["a", "b"]}
    before = result("rag", **rag, retrieved=["d1", "d2"], contains_answer=[True, False])
    after = result("rag", **rag, retrieved=["d3", "d1"], contains_answer=[False, False])
    (change,) = changes(before, after)
    assert change == ("a", 1, None, ["d1"], ["d3"])
    assert not change.is_won


def test_results_of_earlier_versions_name_no_queries():
    assert ranked(result("retrieval", score=[1.0, 0.0])) is None
    assert ranked(result("retrieval")) is None


@pytest.mark.parametrize("protocol", ["all", "per-subset"])
def test_moved_pairs_against_a_plain_loop(protocol):
    """Ranks are counted one by one: the pairs below, and half of those that are equal."""
    rng = np.random.default_rng(11)
    gold = rng.integers(0, 6, 40).astype(float)
    cosines = [np.round(gold / 5 + rng.normal(scale=s, size=40), 1) for s in (0.3, 0.6)]
    subset = rng.choice(["x", "y"], 40).tolist()
    before, after = (
        result("sts", {"protocol": protocol}, predicted=c.tolist(), gold=gold.tolist(), subset=subset) for c in cosines
    )

    def rank(values, i):
        others = [v for v, s in zip(values, subset, strict=True) if protocol == "all" or s == subset[i]]
        return sum(v < values[i] for v in others) + (sum(v == values[i] for v in others) + 1) / 2

    expected = []
    for i in range(40):
        a, b, g = rank(cosines[0], i), rank(cosines[1], i), rank(gold, i)
        if abs(a - g) != abs(b - g):
            expected.append((-abs(abs(b - g) - abs(a - g)), i, (g, a, b), abs(b - g) < abs(a - g)))
    changes = moved_pairs(before, after)
    assert [(change.row, change.ranks, change.is_won) for change in changes] == [
        change[1:] for change in sorted(expected)
    ]
    assert [(change.gold, change.before, change.after) for change in changes] == [
        (gold[i], cosines[0][i], cosines[1][i]) for _, i, _, _ in sorted(expected)
    ]


def test_labelled_pairs_that_cross_the_best_threshold():
    """By hand: before, 0.6 is best (one error, pair 3); after, 0.3 is best (one error, pair 1)."""
    gold = [1, 1, 0, 1, 0]
    before = result("pair_classification", predicted=[0.9, 0.6, 0.5, 0.1, 0.2], gold=gold)
    after = result("pair_classification", predicted=[0.9, 0.05, 0.2, 0.3, 0.1], gold=gold)
    changes = moved_pairs(before, after)
    # Ranks by cosine from the lowest: pair 1 falls from 4 to 1, pair 3 rises from 1 to 4: equal changes.
    assert [(change.row, change.before, change.after, change.is_won) for change in changes] == [
        (1, 0.6, 0.05, False),
        (3, 0.1, 0.3, True),
    ]
    assert [change.ranks[1:] for change in changes] == [(4.0, 1.0), (1.0, 4.0)]


def test_scales_of_cosines_do_not_count():
    gold = [1, 0, 1, 0, 1]
    one = result("pair_classification", predicted=[0.99, 0.97, 0.98, 0.5, 0.96], gold=gold)
    other = result("pair_classification", predicted=[0.4, 0.2, 0.3, -0.9, 0.1], gold=gold)  # the same order
    assert moved_pairs(one, other) == []


def test_confused_classes_by_hand():
    gold = ["cat", "cat", "cat", "dog", "dog", "fish"]
    before = result("classification", score=[], gold=gold, predicted=["dog", "dog", "cat", "dog", "cat", "dog"])
    after = result("classification", score=[], gold=gold, predicted=["cat", "cat", "cat", "dog", "cat", "cat"])
    assert confused_classes(before, after) == [
        Confusion("cat", "dog", 2, 0, 3),
        Confusion("fish", "cat", 0, 1, 1),
        Confusion("fish", "dog", 1, 0, 1),
    ]  # dog for cat is as frequent in both
