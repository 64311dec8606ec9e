"""Cost: scores against the time per text and the size of vectors, and against training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from embrew.comparison.verdict import best_and_other
from embrew.report.cost_charts import cost_charts, training_charts
from embrew.report.nested import chosen_task, nested_scores
from embrew.report.points import Cost, Point, mark_front
from embrew.report.section import Figure, Section
from embrew.report.subject import Subject
from embrew.report.timing import ROUNDS, milliseconds, sample, time_encoder

if TYPE_CHECKING:
    from embrew.text_encoder.interface import TextEncoder

NOT_MEASURED = "not measured"


def measure(encoder: TextEncoder, subject: Subject) -> dict[str, Any]:
    """Return the number of dimensions, the rounds of the timing, and scores at several depths and widths."""
    texts = sample(subject.data)
    (vector,) = encoder.encode_document(["a text"], show_progress_bar=False)
    return {
        "dimensions": len(vector),
        "texts": len(texts),
        "rounds": time_encoder(encoder, texts) if texts else None,
        "nested": nested_scores(encoder, subject),
    }


def section(subject: Subject) -> Section:
    """Return the section."""
    costs = costs_of(subject)
    whole = mark_front(
        Point(cost.model, cost.score, cost.milliseconds, cost.bytes, dimensions=cost.dimensions)
        for cost in costs
        if cost.bytes
    )
    nested = mark_front(_nested_points(subject, costs))
    task = chosen_task(subject)
    count = len(subject.comparison.tasks)
    mean = f"mean score of {count} tasks × 100" if count > 1 else f"{subject.comparison.tasks[0].label}, score × 100"
    names = [cost.model for cost in costs]
    charts = cost_charts("cost", whole, mean, names)
    charts += cost_charts("cost-nested", nested, f"{task}, score × 100", names)
    values = {
        "costs": costs,
        "front": nested_front(nested),
        "task": task,
        "texts": max((one["texts"] for one in _measured(subject).values()), default=0),
        "rounds": ROUNDS,
        "charts": [*charts, *training_charts(costs, mean)],
    }
    document = {
        "models": [{**vars(cost), "bytes": cost.bytes} for cost in costs],
        "points": [point._asdict() for point in whole],
        "nested": {"task": task, "points": [point._asdict() for point in nested]} if nested else None,
    }
    return Section("cost", "Cost", values, document, tuple(_figures(costs, nested, task)), sentence(subject))


def sentence(subject: Subject) -> str:
    """Return the verdict's sentence on the cost of the best model against the first one.

    If the first model is the best, it is compared with the second best.
    """
    costs = costs_of(subject)
    if not any(cost.bytes for cost in costs):
        known = any(sources[0].model for sources in subject.sources.values())
        why = f": no encoder is known{_unknown(subject)}"
        return f"Time per text and size of vectors were not measured{' yet' if known else why}."
    if len(costs) == 1:
        return f"{costs[0].model} takes {_time(costs[0])} and {_size(costs[0])}."
    best, other = best_and_other(subject.comparison)
    a, b = costs[best], costs[other]
    ours, theirs = (f"{one.model} takes {_time(one)} and {_size(one)}" for one in (a, b))
    return f"{ours}; {theirs}{_ratio(a, b)}{_unknown(subject)}."


def costs_of(subject: Subject) -> list[Cost]:
    """Return what each model costs."""
    measured = _measured(subject)
    timed = {name: one["rounds"] for name, one in measured.items() if one["rounds"]}
    texts = max((one["texts"] for one in measured.values()), default=0)
    times = milliseconds(timed, texts)
    return [
        Cost(
            model.name,
            score,
            times.get(model.name),
            measured.get(model.name, {}).get("dimensions"),
            *_training(subject, model.name),
        )
        for model, score in zip(subject.comparison.models, subject.comparison.means(), strict=True)
    ]


def nested_front(points: Sequence[Point]) -> list[Point]:
    """Return the points on a Pareto front, by score."""
    return sorted((point for point in points if point.fronts), key=lambda point: -point.score)


def _nested_points(subject: Subject, costs: Sequence[Cost]) -> Iterator[Point]:
    """Yield a point per depth and width of each model that has several, and one of each other model, on one task."""
    measured, label = _measured(subject), chosen_task(subject)
    if not any(one["nested"] for one in measured.values()):
        return
    task = next(task for task in subject.comparison.tasks if task.label == label)
    for i, cost in enumerate(costs):
        found = measured.get(cost.model, {}).get("nested")
        if found is None:
            if cost.bytes:
                yield Point(cost.model, task.scores[i], cost.milliseconds, cost.bytes, dimensions=cost.dimensions)
            continue
        own = found.get("milliseconds")
        for row, layers in enumerate(found["layers"]):
            share = own[row] / own[-1] if own else 1.0  # of the whole encoder, timed together
            time = None if cost.milliseconds is None else cost.milliseconds * share
            for dim, score in zip(found["dims"], found["scores"][row], strict=True):
                yield Point(cost.model, score, time, 4 * dim, layers=layers, dimensions=dim)


def _measured(subject: Subject) -> Mapping[str, Any]:
    return subject.measured.get("cost", {})


def _training(subject: Subject, model: str) -> tuple[float | None, int | None]:
    """Return seconds and samples of the training of a model, means over its seeds."""
    found = [source.training() for source in subject.sources.get(model, ())]
    seconds = [one.seconds for one in found if one.seconds is not None]
    samples = [one.samples for one in found if one.samples is not None]
    return (
        sum(seconds) / len(seconds) if seconds else None,
        round(sum(samples) / len(samples)) if samples else None,
    )


def _figures(costs: Sequence[Cost], nested: Sequence[Point], task: str | None) -> Iterator[Figure]:
    for cost in costs:
        known = {
            "ms per text": cost.milliseconds,
            "bytes per vector": cost.bytes,
            "training seconds": cost.seconds,
            "training samples": cost.samples,
        }
        yield from (Figure("cost", cost.model, name, value) for name, value in known.items() if value is not None)
    for point in nested:
        if point.layers is not None or point.dimensions is not None:
            yield Figure("cost", point.model, f"score at {point.size}", point.score, task or "")
            if point.milliseconds is not None:
                yield Figure("cost", point.model, f"ms per text at {point.size}", point.milliseconds, task or "")


def _time(cost: Cost) -> str:
    if cost.milliseconds is None:
        return f"a time per text that was {NOT_MEASURED}"
    return f"{cost.milliseconds:.3g} ms per text"


def _unknown(subject: Subject) -> str:
    """Return why encoders that were stored with results are not used."""
    reasons = [f"{name}: {first.unknown}" for name, (first, *_) in subject.sources.items() if first.unknown]
    return f" ({'; '.join(reasons)})" if reasons else ""


def _size(cost: Cost) -> str:
    return f"a size of vectors that was {NOT_MEASURED}" if cost.bytes is None else f"{cost.bytes:,} bytes per vector"


def _ratio(a: Cost, b: Cost) -> str:
    if not (a.milliseconds and b.milliseconds):
        return ""
    return f" ({a.milliseconds / b.milliseconds:.2f} times the time)"
