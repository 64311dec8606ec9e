"""Cost: scores against the time per text and the size of vectors, by depth and dimensions, and training."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from embrew.comparison import TaskScores
from embrew.comparison.verdict import best_and_other
from embrew.evaluation.kinds import KINDS
from embrew.report.section import Figure, Section, Subject, VegaChart, colour_by_model
from embrew.text_encoder.interface import encode_options

if TYPE_CHECKING:
    from embrew.evaluation.task import Task
    from embrew.text_encoder.interface import TextEncoder

TEXTS = 64  # encoded per round
ROUNDS = 5
SIZE, PRODUCTS = 512, 8  # of the fixed computation: products of two SIZE × SIZE matrices in float32
TRAIN_DEPTHS = frozenset({"espresso", "matryoshka_2d"})  # objectives that train the encoder at several depths
AXES = {"milliseconds": "ms per text", "bytes": "bytes per vector"}


@dataclass(frozen=True)
class Cost:
    """What a model costs; None: not measured, or not known."""

    model: str
    score: float
    milliseconds: float | None
    dimensions: int | None
    seconds: float | None
    samples: int | None

    @property
    def bytes(self) -> int | None:
        """Size of a float32 vector."""
        return None if self.dimensions is None else 4 * self.dimensions


class Point(NamedTuple):
    """A model, or a model with fewer layers or dimensions, with its score and costs.

    Attributes:
        model: Name of the model.
        score: From 0 to 1.
        milliseconds: Time per text; None if it was not measured.
        bytes: Size of a float32 vector.
        layers: Number of layers; None: all, of a model without fewer.
        dimensions: Number of dimensions.
        fronts: The costs on whose Pareto front it is: no other point scores higher at the same cost or less.
    """

    model: str
    score: float
    milliseconds: float | None
    bytes: int | None
    layers: int | None = None
    dimensions: int | None = None
    fronts: tuple[str, ...] = ()

    @property
    def size(self) -> str:
        """Layers and dimensions, as text."""
        layers = "all layers" if self.layers is None else f"{self.layers} layers"
        return f"{layers}, {self.dimensions} dimensions"


def measure_cost(encoder: TextEncoder, subject: Subject) -> dict[str, Any]:
    """Return the number of dimensions, the rounds of the timing, and scores at several depths and dimensions."""
    from embrew.evaluation.task_texts import task_texts

    texts: list[str] = []
    for task in subject.data.values():  # equally many texts of each; documents where a task has them
        *_, (_, own) = task_texts(task)
        texts += islice((text for text in own if text.strip()), max(1, TEXTS // len(subject.data)))
    (vector,) = encoder.encode_document(["a text"], show_progress_bar=False)
    task_scores = nested_task(subject)
    nested = None if task_scores is None else _nested_scores(encoder, subject.data[task_scores.key])
    return {
        "dimensions": len(vector),
        "texts": len(texts),
        "rounds": _time_encoder(encoder, texts) if texts else None,
        "nested": nested,
    }


def nested_task(subject: Subject) -> TaskScores | None:
    """Return the task for scores by depth and dimensions: the smallest STS task with data, else the smallest."""
    tasks = [t for t in subject.comparison.tasks if t.key in subject.data and not KINDS[t.first.kind].grid]
    order = [(task.first.kind != "sts", sum(task.first.counts.values()), task.label) for task in tasks]
    return tasks[order.index(min(order))] if tasks else None


def section(subject: Subject) -> Section:
    """Return the section."""
    costs = costs_of(subject)
    points = mark_fronts(
        Point(one.model, one.score, one.milliseconds, one.bytes, dimensions=one.dimensions)
        for one in costs
        if one.bytes
    )
    nested = mark_fronts(_nested_points(subject, costs))
    nested_on = nested_task(subject)
    task = nested_on.label if nested_on else None
    count = len(subject.comparison.tasks)
    mean = f"mean score of {count} tasks × 100" if count > 1 else f"{subject.comparison.tasks[0].label}, score × 100"
    values = {
        "costs": costs,
        "front": sorted((point for point in nested if point.fronts), key=lambda point: -point.score),
        "task": task,
        "texts": max((one["texts"] for one in subject.costs.values()), default=0),
        "rounds": ROUNDS,
        "charts": [
            *_charts("cost", points, mean, subject.names),
            *_charts("cost-nested", nested, f"{task}, score × 100", subject.names),
        ],
    }
    document = {
        "models": [{**asdict(cost), "bytes": cost.bytes} for cost in costs],
        "points": [point._asdict() for point in points],
        "nested": {"task": task, "points": [point._asdict() for point in nested]} if nested else None,
    }
    return Section("cost", "Cost", values, document, tuple(_figures(costs, nested, task or "")), _sentence(subject))


def costs_of(subject: Subject) -> list[Cost]:
    """Return what each model costs; seconds and samples of training are means over its seeds."""
    times = milliseconds({name: one["rounds"] for name, one in subject.costs.items() if one["rounds"]}, subject)
    costs = []
    for name, score in zip(subject.names, subject.comparison.means(), strict=True):
        training = [source.training() for source in subject.sources.get(name, ())]
        seconds = [one for one, _ in training if one is not None]
        samples = [one for _, one in training if one is not None]
        costs.append(
            Cost(
                name,
                score,
                times.get(name),
                subject.costs.get(name, {}).get("dimensions"),
                sum(seconds) / len(seconds) if seconds else None,
                round(sum(samples) / len(samples)) if samples else None,
            )
        )
    return costs


def milliseconds(timed: Mapping[str, Mapping[str, Sequence[float]]], subject: Subject) -> dict[str, float]:
    """Return each model's time per text as it would be if the fixed computation had always taken its median time."""
    if not timed:
        return {}
    common = float(np.median(list(chain.from_iterable(one["fixed"] for one in timed.values()))))
    return {
        name: 1000 * common * float(np.median(np.divide(one["encoder"], one["fixed"]))) / subject.costs[name]["texts"]
        for name, one in timed.items()
    }


def mark_fronts(points: Iterable[Point]) -> list[Point]:
    """Return the points with the Pareto fronts that each is on."""
    marked = list(points)
    for cost in AXES:
        best = float("-inf")
        order = [i for i, point in enumerate(marked) if getattr(point, cost) is not None]
        for i in sorted(order, key=lambda i: (getattr(marked[i], cost), -marked[i].score)):
            if marked[i].score > best:
                best = marked[i].score
                marked[i] = marked[i]._replace(fronts=(*marked[i].fronts, cost))
    return marked


def _time_encoder(encoder: TextEncoder, texts: Sequence[str]) -> dict[str, list[float]]:
    """Return the seconds of each round: encoding all texts as documents, and the fixed computation before and after.

    Encoders are timed one after the other; the fixed computation shows how busy the machine was. The encoder runs once
    before the first round.
    """
    import torch

    encode = partial(encoder.encode_document, list(texts), **encode_options(encoder))

    def fixed() -> None:
        matrix = torch.eye(SIZE, device=getattr(encoder, "device", None))
        for _ in range(PRODUCTS):
            matrix = matrix @ matrix
        matrix.sum().item()  # waits for the device

    def seconds(run: Any) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    encode()
    rounds: dict[str, list[float]] = {"encoder": [], "fixed": []}
    for _ in range(ROUNDS):
        before = seconds(fixed)
        rounds["encoder"].append(seconds(encode))
        rounds["fixed"].append((before + seconds(fixed)) / 2)
    return rounds


def _nested_scores(encoder: Any, task: Task) -> dict[str, Any] | None:
    """Return scores by layers and dimensions; None if the encoder was trained for one size only.

    `milliseconds` are per text, by number of layers; missing where layers cannot be left out.
    """
    from embrew.encoder import Encoder

    if not isinstance(encoder, Encoder):
        dims = _stock_dimensions(encoder)
        return {"layers": [None], "dims": dims, "scores": [_stock_scores(encoder, task, dims)]} if dims else None
    from embrew.analysis.surface import surface_of
    from embrew.config.yaml_files import parse_yaml
    from embrew.export.parts import nested_dimensions

    dims = nested_dimensions(encoder)
    has_depths = not TRAIN_DEPTHS.isdisjoint(
        _objectives(parse_yaml(encoder.recipe or "", source="the recipe of the encoder"))
    )
    if not encoder.steps or not (dims or has_depths):
        return None
    layers = None if has_depths else [encoder.backbone.num_layers]
    surface = surface_of(encoder, [task], layers=layers, dims=dims or None)
    return {
        "layers": list(surface.layers),
        "dims": list(surface.dims),
        "scores": surface.means.tolist(),
        "milliseconds": list(surface.milliseconds),
    }


def _objectives(part: Any) -> Iterator[str]:
    """Yield the types of all objectives in a part of a recipe."""
    if isinstance(part, Mapping):
        yield from [str(part["type"])] if "type" in part else []
        part = list(part.values())
    for one in part if isinstance(part, list) else ():
        yield from _objectives(one)


def _stock_dimensions(encoder: Any) -> list[int]:
    """Return `matryoshka_dimensions` of a Sentence-Transformers model, with the full number; empty if it has none."""
    config = getattr(getattr(encoder[0], "auto_model", None), "config", None) if hasattr(encoder, "__iter__") else None
    dims = getattr(config, "matryoshka_dimensions", None)
    if not dims:
        return []
    width = encoder.get_embedding_dimension()
    return sorted({int(dim) for dim in dims if dim < width} | {width})


def _stock_scores(encoder: Any, task: Task, dims: Sequence[int]) -> list[float]:
    from embrew.evaluation.scoring import prepare

    evaluate, before = prepare(task), encoder.truncate_dim
    scores = []
    try:
        for dim in dims:
            encoder.truncate_dim = dim
            scores.append(float(evaluate(encoder, encode_options(encoder))[0]["main_score"]))
    finally:
        encoder.truncate_dim = before
    return scores


def _nested_points(subject: Subject, costs: Sequence[Cost]) -> Iterator[Point]:
    """Yield a point per depth and width of each model that has several, and one of each other model, on one task."""
    task = nested_task(subject)
    if task is None or not any(one["nested"] for one in subject.costs.values()):
        return
    for cost, whole_score in zip(costs, task.scores, strict=True):
        nested = subject.costs.get(cost.model, {}).get("nested")
        if nested is None:
            if cost.bytes:
                yield Point(cost.model, whole_score, cost.milliseconds, cost.bytes, dimensions=cost.dimensions)
            continue
        own = nested.get("milliseconds")
        for row, layers in enumerate(nested["layers"]):
            share = own[row] / own[-1] if own else 1.0  # of the whole encoder, timed together
            per_text = None if cost.milliseconds is None else cost.milliseconds * share
            for dim, score in zip(nested["dims"], nested["scores"][row], strict=True):
                yield Point(cost.model, score, per_text, 4 * dim, layers=layers, dimensions=dim)


def _sentence(subject: Subject) -> str:
    """Return the verdict's sentence on the cost of the best model against the first one.

    If the first model is the best, it is compared with the second best.
    """
    costs = costs_of(subject)
    reasons = [f"{name}: {first.unknown}" for name, (first, *_) in subject.sources.items() if first.unknown]
    unknown = f" ({'; '.join(reasons)})" if reasons else ""
    if not any(cost.bytes for cost in costs):
        is_known = any(sources[0].model for sources in subject.sources.values())
        why = "" if is_known else f": no encoder is known{unknown}"
        return f"Time per text and size of vectors were not measured{why}."
    if len(costs) == 1:
        return f"{_in_words(costs[0])}."
    best, other = (costs[i] for i in best_and_other(subject.comparison))
    ratio = ""
    if best.milliseconds and other.milliseconds:
        ratio = f" ({best.milliseconds / other.milliseconds:.2f} times the time)"
    return f"{_in_words(best)}; {_in_words(other)}{ratio}{unknown}."


def _in_words(cost: Cost) -> str:
    per_text, size = "a time per text that was not measured", "a size of vectors that was not measured"
    if cost.milliseconds is not None:
        per_text = f"{cost.milliseconds:.3g} ms per text"
    if cost.bytes is not None:
        size = f"{cost.bytes:,} bytes per vector"
    return f"{cost.model} takes {per_text} and {size}"


def _charts(name: str, points: Sequence[Point], score: str, models: Sequence[str]) -> list[VegaChart]:
    """Return scores against the time per text, and against bytes per vector, with the Pareto front; those measured."""
    import altair as alt

    charts = []
    for cost, title in AXES.items():
        measured = [point for point in points if getattr(point, cost) is not None]
        if not measured:
            continue
        rows = [
            {**point._asdict(), "score": 100 * point.score, "size": point.size, "front": cost in point.fronts}
            for point in measured
        ]
        scale = alt.Scale(type="log") if cost == "bytes" else alt.Scale(zero=True)
        base = alt.Chart(alt.Data(values=rows)).encode(
            x=alt.X(f"{cost}:Q", title=title, scale=scale),
            y=alt.Y("score:Q", title=score, scale=alt.Scale(zero=False)),
        )
        front = base.transform_filter("datum.front").mark_line(strokeDash=[4, 3], color="#808080")
        value = alt.Tooltip(f"{cost}:Q", title=title, format=",.4~g")
        tooltip = ["model:N", "size:N", alt.Tooltip("score:Q", format=".2f"), value]
        dots = base.mark_point(filled=True, size=60).encode(color=colour_by_model(models), tooltip=tooltip)
        spec = (front + dots).properties(width=300, height=300).to_dict()
        charts.append(VegaChart(f"{name}-{cost}", spec, f"{score}, against {title}; the line is the Pareto front."))
    return charts


def _figures(costs: Sequence[Cost], nested: Sequence[Point], task: str) -> Iterator[Figure]:
    for cost in costs:
        quantities = {
            "ms per text": cost.milliseconds,
            "bytes per vector": cost.bytes,
            "training seconds": cost.seconds,
            "training samples": cost.samples,
        }
        yield from (Figure("cost", cost.model, name, value) for name, value in quantities.items() if value is not None)
    for point in nested:
        yield Figure("cost", point.model, f"score at {point.size}", point.score, task)
        if point.milliseconds is not None:
            yield Figure("cost", point.model, f"ms per text at {point.size}", point.milliseconds, task)
