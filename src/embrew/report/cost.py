"""Cost: scores against the time per text and the size of vectors, by depth and dimensions, and training."""

from __future__ import annotations

import math
import re
import timeit
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypedDict

from embrew.analysis.efficiency import pareto_front
from embrew.evaluation.kinds import KINDS
from embrew.report.comparison import TaskScores
from embrew.report.section import EncoderCost, NestedScores, Section, Subject, Values, model_colours
from embrew.report.verdict import best_and_other
from embrew.settings.validation import shortened
from embrew.text_encoder import encode_options

if TYPE_CHECKING:
    from embrew.evaluation.task import Task
    from embrew.text_encoder import TextEncoder

LEFT, RIGHT, TOP, BOTTOM = 30, 350, 14, 228  # area of the points, in a drawing of 360 by 264
LETTER, LINE = 7.1, 14  # width of a letter, and height of a name
NAME_LENGTH = 28  # maximum number of characters of a name
SHIFTS = (0, -10, 10, -16, 16, -28, 28, -42, 42, -56, 56, -70, 70)  # distances of a name from its point, upwards first
STEPS = (1, 2, 5)  # distances of ticks, times a power of ten
Box = tuple[float, float, float, float]  # left, top, right and bottom of a name, a point or a line
TEXTS = 64  # texts encoded per round
ROUNDS, FEWEST_ROUNDS, SLOW = 5, 2, 1.0  # the last: seconds of a round from which there are few
TRAINED_AT_DEPTHS = re.compile(r"""\btype["']?:\s*["']?(espresso|matryoshka_2d)\b""")  # objectives, in a recipe
AXES = {"milliseconds": "ms per text", "bytes": "bytes per vector"}


def pareto_plot(
    points: Iterable[Values],
    cost: str,
    *,
    title: str,
    axis: str,
    levels: Mapping[str, float] | None = None,
) -> Values | None:
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
    marks: list[Values] = [
        {**plain, **point, "x": x(point[cost]), "y": y(100 * point["score"]), "cost": point[cost]} for point in measured
    ]
    front = sorted((mark for mark in marks if cost in mark["fronts"]), key=lambda mark: mark["x"])
    covered: list[Box] = [(mark["x"] - 6, mark["y"] - 6, mark["x"] + 6, mark["y"] + 6) for mark in marks]
    lines: list[Values] = [{"y": y(100 * score)} for score in levels.values()]
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


def _label(text: str, x: float, y: float, covered: list[Box], drawn: list[Box]) -> Values | None:
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


class ModelCost(TypedDict):
    """A model's mean score (0 to 1) and costs; None: not known. `seconds` and `samples` are those of training."""

    model: str
    score: float
    milliseconds: float | None
    dimensions: int | None
    seconds: float | None
    samples: int | None
    bytes: int | None


def measure_cost(encoder: TextEncoder, subject: Subject) -> EncoderCost:
    """Return the number of dimensions, the time per text, and scores at several depths and dimensions."""
    from embrew.evaluation.overlap import task_texts

    texts: list[str] = []
    for task in subject.data.values():  # equally many texts of each; documents where a task has them
        *_, (_, task_documents) = task_texts(task)
        texts += islice((text for text in task_documents if text.strip()), max(1, TEXTS // len(subject.data)))
    (vector,) = encoder.encode_document(["a text"], show_progress_bar=False)
    task_scores = nested_task(subject)
    nested = None if task_scores is None else _nested_scores(encoder, subject.data[task_scores.key])
    encode = partial(encoder.encode_document, list(texts), **encode_options(encoder))
    # The fastest round after a warm-up: other load only makes rounds slower.
    warm_up = timeit.timeit(encode, number=1) if texts else 0.0
    rounds = ROUNDS if warm_up < SLOW else FEWEST_ROUNDS
    seconds = min(timeit.repeat(encode, number=1, repeat=rounds)) if texts else 0.0
    milliseconds = 1000 * seconds / len(texts) if texts else None
    return EncoderCost(len(vector), len(texts), rounds, milliseconds, nested)


def nested_task(subject: Subject) -> TaskScores | None:
    """Return the task for scores by depth and dimensions: the smallest STS task with data, else the smallest."""
    tasks = [t for t in subject.comparison.tasks if t.key in subject.data and not KINDS[t.first.kind].grid]
    order = [(task.first.kind != "sts", sum(task.first.counts.values()), task.label) for task in tasks]
    return tasks[order.index(min(order))] if tasks else None


def section(subject: Subject) -> Section:
    """Return the section.

    A point is a model, or a model with fewer layers or dimensions, with its score, its costs, and the costs on whose
    Pareto front it is: no other point scores higher at the same cost or less.
    """
    costs = costs_of(subject)
    points = mark_fronts(_point(cost, cost["score"]) for cost in costs if cost["bytes"])
    nested = mark_fronts(_nested_points(subject, costs))
    task_of_nested, tasks = nested_task(subject), subject.comparison.tasks
    task = task_of_nested.label if task_of_nested else None
    mean = f"mean score of {len(tasks)} tasks × 100" if len(tasks) > 1 else f"{tasks[0].label}, score × 100"
    document = {"models": costs, "points": points, "nested": {"task": task, "points": nested} if nested else None}
    values = {
        "front": sorted((point for point in nested if point["fronts"]), key=lambda point: -point["score"]),
        "texts": max((cost.texts for cost in subject.costs.values()), default=0),
        "rounds": min((cost.rounds for cost in subject.costs.values()), default=ROUNDS),
        "plots": _plots("cost", subject, points, mean) | _plots("cost-nested", subject, nested, f"{task}, score × 100"),
    }
    return Section("Cost", document, values, _sentence(subject, costs))


def costs_of(subject: Subject) -> list[ModelCost]:
    """Return what each model costs; seconds and samples of training are means over its seeds. None: not known."""
    costs: list[ModelCost] = []
    for name, score in zip(subject.names, subject.comparison.means(), strict=True):
        measured = subject.costs.get(name)
        training = [source.training() for source in subject.sources.get(name, ())]
        seconds = [amount for amount, _ in training if amount is not None]
        samples = [amount for _, amount in training if amount is not None]
        costs.append(
            {
                "model": name,
                "score": score,
                "milliseconds": measured.milliseconds if measured else None,
                "dimensions": measured.dimensions if measured else None,
                "seconds": sum(seconds) / len(seconds) if seconds else None,
                "samples": round(sum(samples) / len(samples)) if samples else None,
                "bytes": measured.bytes if measured else None,
            }
        )
    return costs


def size_in_words(point: Values) -> str:
    """Return layers and dimensions of a point as text."""
    layers = "all layers" if point["layers"] is None else f"{point['layers']} layers"
    return f"{layers}, {point['dimensions']} dimensions"


def mark_fronts(points: Iterable[Values]) -> list[Values]:
    """Return the points with the Pareto fronts that each is on."""
    marked: list[Values] = [{**point, "fronts": []} for point in points]
    for cost in AXES:
        measured = [point for point in marked if point[cost] is not None]
        for point in pareto_front(measured, itemgetter(cost), itemgetter("score")):
            point["fronts"].append(cost)
    return marked


def _nested_scores(encoder: TextEncoder, task: Task) -> NestedScores | None:
    """Return scores by layers and dimensions; None if the encoder was trained for one size only."""
    from embrew.encoder import Encoder

    if not isinstance(encoder, Encoder):
        return _stock_scores(encoder, task)
    from embrew.analysis.surface import surface_of
    from embrew.runtimes.portable import nested_dimensions

    dims, has_depths = nested_dimensions(encoder), TRAINED_AT_DEPTHS.search(encoder.recipe or "")
    if not encoder.steps or not (dims or has_depths):
        return None
    layers = None if has_depths else [encoder.backbone.num_layers]
    surface = surface_of(encoder, [task], layers=layers, dims=dims or None)
    return NestedScores(surface.layers, surface.dims, surface.means.tolist(), surface.milliseconds)


def _stock_scores(encoder: Any, task: Task) -> NestedScores | None:
    """Return scores at `matryoshka_dimensions` of a Sentence-Transformers model, and at the full number."""
    from embrew.evaluation.runs import prepare

    config = getattr(getattr(encoder[0], "auto_model", None), "config", None) if hasattr(encoder, "__iter__") else None
    trained = getattr(config, "matryoshka_dimensions", None)
    if not trained:
        return None
    evaluate, before, width = prepare(task), encoder.truncate_dim, encoder.get_embedding_dimension()
    dims, scores = sorted({int(dim) for dim in trained if dim < width} | {width}), []
    for encoder.truncate_dim in dims:
        scores.append(float(evaluate(encoder, encode_options(encoder))["main_score"]))
    encoder.truncate_dim = before
    return NestedScores([None], dims, [scores])


def _nested_points(subject: Subject, costs: Sequence[ModelCost]) -> Iterator[Values]:
    """Yield a point per depth and width of each model that has several, and one of each other model, on one task."""
    task = nested_task(subject)
    if task is None or not any(cost.nested for cost in subject.costs.values()):
        return
    for cost, full_score in zip(costs, task.scores, strict=True):
        measured = subject.costs.get(cost["model"])
        if measured is None:
            continue
        if measured.nested is None:
            yield _point(cost, full_score)
            continue
        nested = measured.nested
        for row, layers in enumerate(nested.layers):
            # share of the time of the full encoder, timed together
            share = nested.milliseconds[row] / nested.milliseconds[-1] if nested.milliseconds else 1.0
            per_text = None if cost["milliseconds"] is None else cost["milliseconds"] * share
            for dim, score in zip(nested.dims, nested.scores[row], strict=True):
                size = {"milliseconds": per_text, "bytes": 4 * dim, "layers": layers, "dimensions": dim}
                yield {**_point(cost, score), **size}


def _point(cost: ModelCost, score: float) -> Values:
    costs = {"milliseconds": cost["milliseconds"], "bytes": cost["bytes"], "dimensions": cost["dimensions"]}
    return {"model": cost["model"], "score": score, "layers": None, **costs}


def _sentence(subject: Subject, costs: Sequence[ModelCost]) -> str:
    """Return the verdict's sentence on the cost of the best model and of the one that it is compared with."""
    reasons = [f"{name}: {first.unknown}" for name, (first, *_) in subject.sources.items() if first.unknown]
    unknown = f" ({'; '.join(reasons)})" if reasons else ""
    if not any(cost["bytes"] for cost in costs):
        is_known = any(seeds[0].model for seeds in subject.sources.values())
        why = "" if is_known else f": no encoder is known{unknown}"
        return f"Time per text and size of vectors were not measured{why}."
    if len(costs) == 1:
        return f"{_cost_in_words(costs[0])}."
    best, other = (costs[i] for i in best_and_other(subject.comparison))
    ratio = ""
    if best["milliseconds"] and other["milliseconds"]:
        ratio = f" ({best['milliseconds'] / other['milliseconds']:.2f} times the time)"
    return f"{_cost_in_words(best)}; {_cost_in_words(other)}{ratio}{unknown}."


def _cost_in_words(cost: ModelCost) -> str:
    milliseconds, size = cost["milliseconds"], cost["bytes"]
    time = "a time per text that was not measured" if milliseconds is None else f"{milliseconds:.3g} ms per text"
    vectors = "a size of vectors that was not measured" if size is None else f"{size:,} bytes per vector"
    return f"{cost['model']} takes {time} and {vectors}"


def _plots(name: str, subject: Subject, points: Sequence[Values], score: str) -> dict[str, Values]:
    """Return plots of scores against the time per text, and against bytes per vector; those measured."""
    colour = dict(zip(subject.names, model_colours(subject.names), strict=True))
    marks = [{**point, "size": size_in_words(point), "colour": colour[point["model"]]} for point in points]
    plots = {f"{name}-{cost}": pareto_plot(marks, cost, title=score, axis=axis) for cost, axis in AXES.items()}
    return {key: plot for key, plot in plots.items() if plot is not None}
