"""Costs: Pareto fronts, times relative to a fixed computation, training, sizes of nested models."""

from __future__ import annotations

import numpy as np
import pytest

from embrew.report import Model, compare_models, cost
from embrew.report.cost import mark_fronts
from embrew.report.section import EncoderCost, NestedScores, Subject
from embrew.report.sources import ModelSource
from tests.report.subjects import result


def test_a_front_has_what_no_cheaper_point_beats():
    rng = np.random.default_rng(0)
    points = [
        {"score": float(score), "milliseconds": float(time), "bytes": int(size)}
        for score, time, size in zip(rng.random(60), rng.integers(1, 9, 60), 4 * rng.integers(1, 9, 60), strict=True)
    ]
    for axis in ("milliseconds", "bytes"):
        best = {p["score"] for p in points if not any(q[axis] <= p[axis] and q["score"] > p["score"] for q in points)}
        assert {p["score"] for p in mark_fronts(points) if axis in p["fronts"]} == best
    assert mark_fronts([{"score": 1.0, "milliseconds": None, "bytes": None}])[0]["fronts"] == []


@pytest.fixture
def subject() -> Subject:
    models = [Model(name, [[result("T", [score] * 40)]]) for name, score in (("base", 0.4), ("nested", 0.5))]
    nested = NestedScores([1, 2], [4, 8], [[0.2, 0.3], [0.45, 0.5]], [1.0, 4.0])
    costs = {"base": EncoderCost(8, 10, 5, 100.0, None), "nested": EncoderCost(8, 10, 5, 100.0, nested)}
    return Subject(compare_models(models), data={("T", "test"): object()}, costs=costs)  # type: ignore[dict-item]


def test_every_size_of_a_nested_model_is_a_point(subject):
    section = cost.section(subject)
    points = section.document["nested"]["points"]
    assert [(p["model"], p["layers"], p["dimensions"], p["bytes"]) for p in points] == [
        ("base", None, 8, 32),
        ("nested", 1, 4, 16),
        ("nested", 1, 8, 32),
        ("nested", 2, 4, 16),
        ("nested", 2, 8, 32),
    ]
    assert [p["milliseconds"] for p in points] == [100.0, 25.0, 25.0, 100.0, 100.0]  # a layer of two takes a quarter
    assert {(p["layers"], p["dimensions"]) for p in points if "bytes" in p["fronts"]} == {(2, 4), (2, 8)}
    assert {(p["layers"], p["dimensions"]) for p in points if "milliseconds" in p["fronts"]} == {(1, 8), (2, 8)}
    assert list(section.values["plots"]) == [
        "cost-milliseconds",
        "cost-bytes",
        "cost-nested-milliseconds",
        "cost-nested-bytes",
    ]
    assert section.sentence == (
        "nested takes 100 ms per text and 32 bytes per vector; base takes 100 ms per text and 32 bytes per vector "
        "(1.00 times the time)."
    )


def test_training_is_that_of_all_stages_so_far(tmp_path):
    (tmp_path / "run.json").write_text(
        '{"format": 2, "scores": {}, "stages": ["a", "b"], "seconds": {"a": 60.0, "b": 30.0},'
        '"samples": {"a": {"a_step": 8, "steps": 10}, "b": {"a_step": 4, "steps": 5}}}'
    )
    assert ModelSource(run=tmp_path, stage="a").training() == (60.0, 80)
    assert ModelSource(run=tmp_path, stage="b").training() == (90.0, 100)
    assert ModelSource().training() == (None, None)
