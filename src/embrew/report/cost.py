"""Cost: scores against the time per text and the size of vectors, by depth and dimensions, and training."""

from __future__ import annotations

import re
import timeit
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from embrew.comparison.comparing import TaskScores
from embrew.comparison.verdict import best_and_other
from embrew.evaluation.kinds import KINDS
from embrew.report.pareto import pareto_plot
from embrew.report.section import Section, Subject, model_colours
from embrew.text_encoder import encode_options

if TYPE_CHECKING:
    from embrew.evaluation.task import Task
    from embrew.text_encoder import TextEncoder

TEXTS = 64  # encoded per round
ROUNDS, FEWEST_ROUNDS, SLOW = 5, 2, 1.0  # the last: seconds of a round from which there are few
TRAINED_AT_DEPTHS = re.compile(r"""\btype["']?:\s*["']?(espresso|matryoshka_2d)\b""")  # objectives, in a recipe
AXES = {"milliseconds": "ms per text", "bytes": "bytes per vector"}
Row = dict[str, Any]


def measure_cost(encoder: TextEncoder, subject: Subject) -> dict[str, Any]:
    """Return the number of dimensions, the time per text, and scores at several depths and dimensions."""
    from embrew.evaluation.task_texts import task_texts

    texts: list[str] = []
    for task in subject.data.values():  # equally many texts of each; documents where a task has them
        *_, (_, own) = task_texts(task)
        texts += islice((text for text in own if text.strip()), max(1, TEXTS // len(subject.data)))
    (vector,) = encoder.encode_document(["a text"], show_progress_bar=False)
    task_scores = nested_task(subject)
    nested = None if task_scores is None else _nested_scores(encoder, subject.data[task_scores.key])
    encode = partial(encoder.encode_document, list(texts), **encode_options(encoder))
    # The fastest round after a warm-up: other load only makes rounds slower.
    warm_up = timeit.timeit(encode, number=1) if texts else 0.0
    rounds = ROUNDS if warm_up < SLOW else FEWEST_ROUNDS
    seconds = min(timeit.repeat(encode, number=1, repeat=rounds)) if texts else 0.0
    return {
        "dimensions": len(vector),
        "texts": len(texts),
        "rounds": rounds,
        "milliseconds": 1000 * seconds / len(texts) if texts else None,
        "nested": nested,
    }


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
    nested_on, tasks = nested_task(subject), subject.comparison.tasks
    task = nested_on.label if nested_on else None
    mean = f"mean score of {len(tasks)} tasks × 100" if len(tasks) > 1 else f"{tasks[0].label}, score × 100"
    document = {"models": costs, "points": points, "nested": {"task": task, "points": nested} if nested else None}
    values = {
        "front": sorted((point for point in nested if point["fronts"]), key=lambda point: -point["score"]),
        "texts": max((one["texts"] for one in subject.costs.values()), default=0),
        "rounds": min((one.get("rounds", ROUNDS) for one in subject.costs.values()), default=ROUNDS),
        "plots": _plots("cost", subject, points, mean) | _plots("cost-nested", subject, nested, f"{task}, score × 100"),
    }
    return Section("Cost", document, values, _sentence(subject, costs))


def costs_of(subject: Subject) -> list[Row]:
    """Return what each model costs; seconds and samples of training are means over its seeds. None: not known."""
    costs = []
    for name, score in zip(subject.names, subject.comparison.means(), strict=True):
        measured = subject.costs.get(name, {})
        training = [source.training() for source in subject.sources.get(name, ())]
        seconds = [one for one, _ in training if one is not None]
        samples = [one for _, one in training if one is not None]
        costs.append(
            {
                "model": name,
                "score": score,
                "milliseconds": measured.get("milliseconds"),
                "dimensions": measured.get("dimensions"),
                "seconds": sum(seconds) / len(seconds) if seconds else None,
                "samples": round(sum(samples) / len(samples)) if samples else None,
                "bytes": 4 * measured["dimensions"] if measured else None,  # float32
            }
        )
    return costs


def size_of(point: Mapping[str, Any]) -> str:
    """Return layers and dimensions of a point as text."""
    layers = "all layers" if point["layers"] is None else f"{point['layers']} layers"
    return f"{layers}, {point['dimensions']} dimensions"


def mark_fronts(points: Iterable[Row]) -> list[Row]:
    """Return the points with the Pareto fronts that each is on."""
    marked = [{**point, "fronts": []} for point in points]
    for cost in AXES:
        best = float("-inf")
        measured = [point for point in marked if point[cost] is not None]
        for point in sorted(measured, key=lambda point: (point[cost], -point["score"])):
            if point["score"] > best:
                best = point["score"]
                point["fronts"].append(cost)
    return marked


def _nested_scores(encoder: Any, task: Task) -> dict[str, Any] | None:
    """Return scores by layers and dimensions; None if the encoder was trained for one size only.

    `milliseconds` are per text, by number of layers; missing where layers cannot be left out.
    """
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
    return {
        "layers": list(surface.layers),
        "dims": list(surface.dims),
        "scores": surface.means.tolist(),
        "milliseconds": list(surface.milliseconds),
    }


def _stock_scores(encoder: Any, task: Task) -> dict[str, Any] | None:
    """Return scores at `matryoshka_dimensions` of a Sentence-Transformers model, and at the full number."""
    from embrew.evaluation.scoring import prepare

    config = getattr(getattr(encoder[0], "auto_model", None), "config", None) if hasattr(encoder, "__iter__") else None
    trained = getattr(config, "matryoshka_dimensions", None)
    if not trained:
        return None
    evaluate, before, width = prepare(task), encoder.truncate_dim, encoder.get_embedding_dimension()
    dims, scores = sorted({int(dim) for dim in trained if dim < width} | {width}), []
    for encoder.truncate_dim in dims:
        scores.append(float(evaluate(encoder, encode_options(encoder))[0]["main_score"]))
    encoder.truncate_dim = before
    return {"layers": [None], "dims": dims, "scores": [scores]}


def _nested_points(subject: Subject, costs: Sequence[Row]) -> Iterator[Row]:
    """Yield a point per depth and width of each model that has several, and one of each other model, on one task."""
    task = nested_task(subject)
    if task is None or not any(one["nested"] for one in subject.costs.values()):
        return
    for cost, whole_score in zip(costs, task.scores, strict=True):
        nested = subject.costs.get(cost["model"], {}).get("nested")
        if nested is None:
            if cost["bytes"]:
                yield _point(cost, whole_score)
            continue
        own = nested.get("milliseconds")
        for row, layers in enumerate(nested["layers"]):
            share = own[row] / own[-1] if own else 1.0  # of the whole encoder, timed together
            per_text = None if cost["milliseconds"] is None else cost["milliseconds"] * share
            for dim, score in zip(nested["dims"], nested["scores"][row], strict=True):
                size = {"milliseconds": per_text, "bytes": 4 * dim, "layers": layers, "dimensions": dim}
                yield {**_point(cost, score), **size}


def _point(cost: Row, score: float) -> Row:
    costs = {key: cost[key] for key in ("milliseconds", "bytes", "dimensions")}
    return {"model": cost["model"], "score": score, "layers": None, **costs}


def _sentence(subject: Subject, costs: Sequence[Row]) -> str:
    """Return the verdict's sentence on the cost of the best model and of the one that it is compared with."""
    reasons = [f"{name}: {first.unknown}" for name, (first, *_) in subject.sources.items() if first.unknown]
    unknown = f" ({'; '.join(reasons)})" if reasons else ""
    if not any(cost["bytes"] for cost in costs):
        is_known = any(seeds[0].model for seeds in subject.sources.values())
        why = "" if is_known else f": no encoder is known{unknown}"
        return f"Time per text and size of vectors were not measured{why}."
    if len(costs) == 1:
        return f"{_in_words(costs[0])}."
    best, other = (costs[i] for i in best_and_other(subject.comparison))
    ratio = ""
    if best["milliseconds"] and other["milliseconds"]:
        ratio = f" ({best['milliseconds'] / other['milliseconds']:.2f} times the time)"
    return f"{_in_words(best)}; {_in_words(other)}{ratio}{unknown}."


def _in_words(cost: Row) -> str:
    time, size = cost["milliseconds"], cost["bytes"]
    per_text = "a time per text that was not measured" if time is None else f"{time:.3g} ms per text"
    size = "a size of vectors that was not measured" if size is None else f"{size:,} bytes per vector"
    return f"{cost['model']} takes {per_text} and {size}"


def _plots(name: str, subject: Subject, points: Sequence[Row], score: str) -> dict[str, Row]:
    """Return plots of scores against the time per text, and against bytes per vector; those measured."""
    colour = dict(zip(subject.names, model_colours(subject.names), strict=True))
    marks = [{**point, "size": size_of(point), "colour": colour[point["model"]]} for point in points]
    plots = {f"{name}-{cost}": pareto_plot(marks, cost, title=score, axis=axis) for cost, axis in AXES.items()}
    return {key: plot for key, plot in plots.items() if plot is not None}
