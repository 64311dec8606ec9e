"""Scores of an encoder at the numbers of layers and dimensions that it was trained for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embrew.evaluation.kinds import KINDS
from embrew.evaluation.task import Task
from embrew.report.subject import Subject

DEPTH = frozenset({"espresso", "matryoshka_2d"})  # objectives that train the encoder at several numbers of layers


def chosen_task(subject: Subject) -> str | None:
    """Return the label of the task for these scores: the smallest STS task whose data are at hand, else the smallest.

    None: there is no such task.
    """
    known = [
        task
        for task in subject.comparison.tasks
        if (task.first.task, task.first.split) in subject.data and not KINDS[task.first.kind].grid
    ]
    known.sort(key=lambda task: (task.first.kind != "sts", sum(task.first.counts.values()), task.label))
    return known[0].label if known else None


def nested_scores(encoder: Any, subject: Subject) -> dict[str, Any] | None:
    """Return scores by layers and dimensions on the chosen task; None if the encoder was trained for one size only.

    `milliseconds` are per text, by number of layers; None where the layers cannot be left out.
    """
    label = chosen_task(subject)
    data = next((subject.data[t.first.task, t.first.split] for t in subject.comparison.tasks if t.label == label), None)
    if data is None:
        return None
    dims = _stock_dimensions(encoder)
    if dims:
        return {"task": label, "layers": [None], "dims": dims, "scores": [_stock_scores(encoder, data, dims)]}
    from embrew.encoder import Encoder

    return _surface(encoder, data, label) if isinstance(encoder, Encoder) and encoder.steps else None


def _surface(encoder: Any, data: Task, label: str | None) -> dict[str, Any] | None:
    from embrew.analysis.surface_scores import surface_of
    from embrew.config.yaml_files import parse_yaml
    from embrew.export.parts import nested_dimensions

    dims = nested_dimensions(encoder)
    has_depth = bool(DEPTH & set(_types(parse_yaml(encoder.recipe or "", source="the recipe of the encoder"))))
    if not dims and not has_depth:
        return None
    found = surface_of(encoder, [data], layers=None if has_depth else [encoder.backbone.num_layers], dims=dims or None)
    return {
        "task": label,
        "layers": list(found.layers),
        "dims": list(found.dims),
        "scores": found.means.tolist(),
        "milliseconds": list(found.milliseconds),
    }


def _types(part: Any) -> list[str]:
    """Return the types of all objectives in a part of a recipe."""
    if isinstance(part, list):
        return [name for one in part for name in _types(one)]
    if not isinstance(part, Mapping):
        return []
    return [*([str(part["type"])] if "type" in part else []), *_types(list(part.values()))]


def _stock_dimensions(encoder: Any) -> list[int]:
    """Return `matryoshka_dimensions` of a Sentence-Transformers model, with the full number; empty if it has none."""
    config = getattr(getattr(encoder[0], "auto_model", None), "config", None) if hasattr(encoder, "__iter__") else None
    dims = getattr(config, "matryoshka_dimensions", None)
    if not dims:
        return []
    width = encoder.get_embedding_dimension()
    return sorted({int(dim) for dim in dims if dim < width} | {width})


def _stock_scores(encoder: Any, data: Task, dims: Sequence[int]) -> list[float]:
    from embrew.evaluation.scoring import prepare
    from embrew.text_encoder.interface import encode_options

    evaluate, before = prepare(data), encoder.truncate_dim
    scores = []
    try:
        for dim in dims:
            encoder.truncate_dim = dim
            scores.append(float(evaluate(encoder, encode_options(encoder))[0]["main_score"]))
    finally:
        encoder.truncate_dim = before
    return scores
