"""The plot of scores against a cost: places by hand, the front, names that cover nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embrew.report.cost import BOTTOM, LEFT, LINE, RIGHT, TOP, mark_fronts, pareto_plot


def plot(*points: tuple[str, float, float | None], **options: Any) -> dict[str, Any] | None:
    """Return the plot of models, scores and times."""
    marks = [{"model": m, "score": s, "milliseconds": t, "bytes": None} for m, s, t in points]
    return pareto_plot(mark_fronts(marks), "milliseconds", title="score", axis="ms per text", **options)


def test_places_are_logarithmic_and_the_front_rises():
    drawn = plot(("slow", 0.6, 100.0), ("quick", 0.4, 10.0), ("worse", 0.3, 100.0), ("not timed", 0.9, None))
    assert drawn is not None
    positions = {mark["model"]: (mark["x"], mark["y"]) for mark in drawn["marks"]}
    # From 5 to 200 ms, a factor of 40; from 27 to 63 points, a tenth of the range of 30 beyond both.
    of_ten, width = np.log(2) / np.log(40), RIGHT - LEFT
    assert positions["quick"][0] == pytest.approx(LEFT + width * of_ten, abs=0.1)
    assert positions["slow"][0] == pytest.approx(RIGHT - width * of_ten, abs=0.1)
    assert positions["worse"][1] == pytest.approx(BOTTOM - (BOTTOM - TOP) * 3 / 36, abs=0.1)
    assert [mark["model"] for mark in drawn["front"]] == ["quick", "slow"]
    assert [text for _, text in drawn["x_ticks"]] == ["5", "10", "20", "50", "100", "200"]
    assert [text for _, text in drawn["y_ticks"]] == ["30", "40", "50", "60"]
    assert plot(("not timed", 0.9, None)) is None


def test_names_stay_inside_and_cover_no_other():
    rng = np.random.default_rng(1)
    for count in (1, 2, 6, 10):
        points = [(f"model number {i}", float(rng.random()), float(10 ** rng.uniform(0, 3))) for i in range(count)]
        drawn = plot(*points, levels={"BM25": 0.2})
        assert drawn is not None
        labels = [each["label"] for each in (*drawn["marks"], *drawn["levels"])]
        assert all(labels), "each is named"
        boxes = []
        for label in labels:
            width = 7.1 * len(label["text"])
            left = label["x"] - {"start": 0, "middle": 0.5, "end": 1}[label["anchor"]] * width
            boxes.append((left, label["y"] - 4, left + width))
        assert min(left for left, *_ in boxes) >= LEFT - 0.1 and max(right for *_, right in boxes) <= RIGHT + 0.1
        for i, (left, y, right) in enumerate(boxes):
            others = boxes[i + 1 :]
            assert not any(abs(y - b) < LINE - 0.1 and left < c and a < right for a, b, c in others)


def test_several_points_of_a_model_have_one_name():
    drawn = plot(("nested", 0.5, 10.0), ("nested", 0.6, 20.0), ("other", 0.2, 5.0))
    assert drawn is not None
    named = {(mark["model"], mark["milliseconds"]) for mark in drawn["marks"] if mark["label"]}
    assert named == {("nested", 20.0), ("other", 5.0)}
