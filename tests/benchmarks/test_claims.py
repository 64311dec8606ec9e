"""A claim of a plan holds, is reversed, or is not resolved, seed by seed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from claims import settle

SCORES = {"a": {"t": [0.5, 0.6, 0.7]}, "b": {"t": [0.4, 0.45, 0.5]}, "c": {"t": [0.55, 0.4, 0.5]}, "flat": {"t": [0.1]}}
SEEDS = {"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2, 3], "flat": [1]}
PERPLEXITY = {"a": {"t: perplexity": [3.0, 4.0, 5.0]}, "b": {"t: perplexity": [9.0, 5.0, 7.0]}}


def verdict(**claim):
    (found,) = settle([{"claim": "x", "task": "t", **claim}], SCORES, PERPLEXITY, SEEDS, ["flat"])
    return found["verdict"], [pytest.approx(difference) for difference in found["differences"]]


def test_every_seed_counts():
    assert verdict(better="a", than="b") == ("holds", [10, 15, 20])
    assert verdict(better="a", than="b", by=9.9) == ("holds", [10, 15, 20])
    assert verdict(better="a", than="b", by=12) == ("not resolved", [10, 15, 20])
    assert verdict(better="b", than="a", by=9.9) == ("reversed", [-10, -15, -20])
    assert verdict(better="a", than="c") == ("not resolved", [-5, 20, 20])


def test_numbers_and_single_rows():
    assert verdict(better="a", than="flat", by=30) == ("holds", [40, 50, 60])
    assert verdict(better="flat", than="a") == ("reversed", [-40, -50, -60])
    assert verdict(better="b", than=30) == ("holds", [10, 15, 20])
    assert verdict(better="b", than=42, lower=True) == ("not resolved", [2, -3, -8])


def test_lower_is_better():
    assert verdict(better="a", than="b", task="t: perplexity", lower=True) == ("holds", [6, 1, 2])
    assert verdict(better="b", than="a", task="t: perplexity", lower=True) == ("reversed", [-6, -1, -2])


def test_what_was_not_run_is_not_measured():
    assert verdict(better="a", than="missing") == ("not measured", [])
    assert verdict(better="missing", than=1) == ("not measured", [])
    with pytest.raises(SystemExit, match="names the task 'u'; there are t"):
        verdict(better="a", than=1, task="u")
    with pytest.raises(SystemExit, match="unknown keys more"):
        verdict(better="a", than=1, more=2)


def test_rows_are_compared_seed_by_seed():
    scores = {"one": {"t": [0.9, 0.5]}, "other": {"t": [0.4, 0.8]}, "trained once": {"t": [0.6]}}
    seeds = {"one": [1, 3], "other": [3, 2], "trained once": [3]}
    claim = {"claim": "x", "better": "one", "than": "other", "task": "t"}
    (found,) = settle([claim], scores, {}, seeds)
    assert found["differences"] == [pytest.approx(10)] and found["found"] == "+10.0 (one seed)"
    assert found["verdict"] == "holds, one seed"
    (found,) = settle([claim], scores, {}, seeds, ["one", "other"])  # two models as they are
    (found,) = settle([{**claim, "than": "trained once"}], scores, {}, seeds)
    assert found["differences"] == [pytest.approx(-10)]  # 0.9, of a seed that the other row does not have, is left out
    (found,) = settle([claim], scores, {}, {**seeds, "other": [4, 2]})
    assert (found["found"], found["verdict"]) == ("no seed in common", "not measured")


def test_a_score_that_does_not_apply_is_left_out():
    further = {"a": {"gap: share": [0.5, None]}, "b": {"gap: share": [None, None]}}
    claims = [{"claim": "x", "better": row, "than": 0.4, "task": "gap: share"} for row in ("a", "b")]
    known, unknown = settle(claims, {}, further, {"a": [1, 2], "b": [1, 2]})
    assert known["verdict"] == "holds, one seed" and len(known["differences"]) == 1
    assert unknown["verdict"] == "not measured"
