"""A plot of scores against a cost, as SVG: a point per model, its name beside it, and the Pareto front."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from embrew.settings.validation import shortened

LEFT, RIGHT, TOP, BOTTOM = 30, 350, 14, 228  # area of the points, in a drawing of 360 by 264
LETTER, LINE = 7.1, 14  # width of a letter, and height of a name
NAME_LENGTH = 28  # maximum number of characters of a name
SHIFTS = (0, -10, 10, -16, 16, -28, 28, -42, 42, -56, 56, -70, 70)  # distances of a name from its point, upwards first
STEPS = (1, 2, 5)  # distances of ticks, times a power of ten
Box = tuple[float, float, float, float]  # left, top, right and bottom of a name, a point or a line


def pareto_plot(
    points: Iterable[Mapping[str, Any]],
    cost: str,
    *,
    title: str,
    axis: str,
    levels: Mapping[str, float] | None = None,
) -> dict[str, Any] | None:
    """Return what `page/plot.html` draws; None if no point has the cost.

    Args:
        points: `model`, `score` (0 to 1), the cost and `fronts` (see `mark_fronts`); `colour` and `is_hollow` are
            optional. Of several points of a model, the one with the highest score has the name.
        cost: key of the cost, on a logarithmic axis.
        title: what the scores are.
        axis: what the costs are.
        levels: scores of models without a cost, which are horizontal lines.
    """
    measured = sorted((point for point in points if point[cost]), key=lambda point: -point["score"])
    if not measured:
        return None
    levels, costs = levels or {}, [point[cost] for point in measured]
    start, end = math.log(min(costs) / 2), math.log(max(costs) * 2)
    scores = [100 * score for score in (*(point["score"] for point in measured), *levels.values())]
    margin = max(1.0, 0.1 * (max(scores) - min(scores)))
    low, high = min(scores) - margin, max(scores) + margin

    def x(value: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (math.log(value) - start) / (end - start), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), 1)

    plain = {"label": None, "size": "", "colour": "var(--accent)", "is_hollow": False}
    marks: list[dict[str, Any]] = [
        {**plain, **point, "x": x(point[cost]), "y": y(100 * point["score"]), "cost": point[cost]} for point in measured
    ]
    front = sorted((mark for mark in marks if cost in mark["fronts"]), key=lambda mark: mark["x"])
    covered: list[Box] = [(mark["x"] - 6, mark["y"] - 6, mark["x"] + 6, mark["y"] + 6) for mark in marks]
    lines: list[dict[str, Any]] = [{"y": y(100 * score)} for score in levels.values()]
    drawn: list[Box] = [(LEFT, line["y"] - 1, RIGHT, line["y"] + 1) for line in lines]
    for mark, after in zip(front, [*front[1:], {"x": RIGHT, "y": front[-1]["y"]}], strict=True):
        drawn.append((mark["x"], mark["y"] - 1, after["x"], mark["y"] + 1))
        drawn.append((after["x"] - 1, after["y"], after["x"] + 1, mark["y"]))
    for line, (name, score) in zip(lines, levels.items(), strict=True):
        text = f"{shortened(name, NAME_LENGTH + 10)} {100 * score:.1f}"
        line["label"] = _label(text, LEFT, line["y"], covered, drawn)
    named = set[str]()
    for mark in marks:
        if mark["model"] not in named:
            mark["label"] = _label(shortened(mark["model"], NAME_LENGTH), mark["x"], mark["y"], covered, drawn)
            named.add(mark["model"])
    return {
        "title": title,
        "axis": axis,
        "x_ticks": [(x(value), f"{value:,.4g}") for value in _logarithmic(math.exp(start), math.exp(end))],
        "y_ticks": [(y(value), f"{value:g}") for value in _linear(low, high)],
        "front": front,
        "marks": marks,
        "levels": lines,
    }


def _label(text: str, x: float, y: float, covered: list[Box], drawn: list[Box]) -> dict[str, Any] | None:
    """Return the position of a point's name, and add its box to `covered`; None if there is no room for it.

    It covers no point and no name, and a line of `drawn` only where there is no room elsewhere.
    """
    width = _width(text)
    middle_x = min(max(x, LEFT + width / 2), RIGHT - width / 2)
    for lines, shift in product((drawn, ()), SHIFTS):
        sides = [(x + 9, "start", 0), (x - 9, "end", -1), *([(middle_x, "middle", -0.5)] if shift else [])]
        for anchor_x, anchor, part in sides:
            left, middle_y = anchor_x + part * width, y + shift
            box = (left, middle_y - LINE / 2, left + width, middle_y + LINE / 2)
            is_inside = left >= LEFT and box[2] <= RIGHT and box[1] >= TOP - LINE and box[3] <= BOTTOM
            if is_inside and not any(_overlap(box, other) for other in (*covered, *lines)):
                covered.append(box)
                return {
                    "text": text,
                    "x": round(anchor_x, 1),
                    "y": round(middle_y + 4, 1),
                    "anchor": anchor,
                    "is_far": abs(shift) > LINE + 2,
                }
    return None


def _overlap(first: Box, second: Box) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def _width(text: str) -> float:
    return LETTER * sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _logarithmic(low: float, high: float) -> Iterator[float]:
    """Yield values for an axis from `low` to `high`, of which the second is at least four times the first."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = STEPS if high / low < 300 else STEPS[:1]
    values = (step * 10.0**power for power in powers for step in steps)
    yield from (value for value in values if 0.999 * low <= value <= 1.001 * high)


def _linear(low: float, high: float) -> list[float]:
    """Return at most six round values from `low` to `high`."""
    step = next(s for power in (-1, 0, 1, 2) for s in (each * 10.0**power for each in STEPS) if (high - low) / s <= 5)
    return [round(i * step, 2) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
