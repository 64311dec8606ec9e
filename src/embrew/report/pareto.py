"""A plot of scores against a cost, as SVG: a point per model, its name beside it, and the Pareto front."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from embrew.config.suggestions import shortened

LEFT, RIGHT, TOP, BOTTOM = 30, 350, 14, 228  # of the area of the points, in a drawing of 360 by 264
LETTER, LINE = 7.1, 14  # width of a letter, and height of a name
LONGEST = 28  # characters of a name
SHIFTS = (0, -10, 10, -16, 16, -28, 28, -42, 42, -56, 56, -70, 70)  # of a name from its point
STEPS = (1, 2, 5)  # of ticks
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
    shown = sorted((point for point in points if point[cost]), key=lambda point: -point["score"])
    if not shown:
        return None
    levels = levels or {}
    costs = [point[cost] for point in shown]
    start, end = math.log(min(costs) / 2), math.log(max(costs) * 2)
    scores = [100 * score for score in (*(point["score"] for point in shown), *levels.values())]
    room = max(1.0, 0.1 * (max(scores) - min(scores)))
    low, high = min(scores) - room, max(scores) + room

    def x(value: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (math.log(value) - start) / (end - start), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), 1)

    plain = {"label": None, "size": "", "colour": "var(--accent)", "is_hollow": False}
    marks: list[dict[str, Any]] = [
        {**plain, **p, "x": x(p[cost]), "y": y(100 * p["score"]), "cost": p[cost]} for p in shown
    ]
    front = sorted((mark for mark in marks if cost in mark["fronts"]), key=lambda mark: mark["x"])
    taken: list[Box] = [(mark["x"] - 6, mark["y"] - 6, mark["x"] + 6, mark["y"] + 6) for mark in marks]
    lines: list[dict[str, Any]] = [{"y": y(100 * score)} for score in levels.values()]
    drawn: list[Box] = [(LEFT, line["y"] - 1, RIGHT, line["y"] + 1) for line in lines]
    for mark, after in zip(front, [*front[1:], {"x": RIGHT, "y": front[-1]["y"]}], strict=True):
        drawn.append((mark["x"], mark["y"] - 1, after["x"], mark["y"] + 1))
        drawn.append((after["x"] - 1, after["y"], after["x"] + 1, mark["y"]))
    for line, (name, score) in zip(lines, levels.items(), strict=True):
        line["label"] = _label(f"{shortened(name, LONGEST + 10)} {100 * score:.1f}", LEFT, line["y"], taken, drawn)
    named = set[str]()
    for mark in marks:
        if mark["model"] not in named:
            mark["label"] = _label(shortened(mark["model"], LONGEST), mark["x"], mark["y"], taken, drawn)
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


def _label(text: str, x: float, y: float, taken: list[Box], drawn: list[Box]) -> dict[str, Any] | None:
    """Return a place for the name of a point, and mark it as taken; None if there is none.

    It covers no point and no name, and a line that is drawn only where there is no other place.
    """
    width = _width(text)
    middle = min(max(x, LEFT + width / 2), RIGHT - width / 2)
    for lines, shift in product((drawn, ()), SHIFTS):
        sides = [(x + 9, "start", 0), (x - 9, "end", -1), *([(middle, "middle", -0.5)] if shift else [])]
        for at, anchor, part in sides:
            left, place = at + part * width, y + shift
            box = (left, place - LINE / 2, left + width, place + LINE / 2)
            is_inside = left >= LEFT and box[2] <= RIGHT and box[1] >= TOP - LINE and box[3] <= BOTTOM
            if is_inside and not any(_overlap(box, other) for other in (*taken, *lines)):
                taken.append(box)
                about = {"anchor": anchor, "is_far": abs(shift) > LINE + 2}
                return {"text": text, "x": round(at, 1), "y": round(place + 4, 1), **about}
    return None


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


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
