"""Geometry: how a model's vectors use their space, and on which texts it scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from embrew.report.chart import Chart
from embrew.report.lengths import LengthScore, scores_by_length
from embrew.report.section import Figure, Section
from embrew.report.subject import Subject

if TYPE_CHECKING:
    from embrew.text_encoder.interface import TextEncoder


class Quantity(NamedTuple):
    """A line of the table: its name, what is better, and how to get it from the figures of a model."""

    name: str
    better: str
    value: Callable[[Mapping[str, Any]], float | None]


def measure(encoder: TextEncoder, subject: Subject) -> dict[str, Any]:
    """Return the figures of an encoder's vectors, and coordinates for the map."""
    from embrew.report.geometry import measure_vectors

    return measure_vectors(encoder, subject.data)


def section(subject: Subject) -> Section | None:
    """Return the section; None if no encoder is known, and no score by length."""
    names = [model.name for model in subject.comparison.models]
    given = subject.measured.get("geometry", {})
    measured = {name: given[name] for name in names if given.get(name)}
    lengths = scores_by_length(subject.comparison, subject.data, subject.cache)
    if not measured and not lengths:
        return None
    quantities = list(_quantities(measured))
    values = {
        "models": names,
        "rows": [
            {"name": one.name, "better": one.better, "cells": [_cell(one, measured.get(name)) for name in names]}
            for one in quantities
        ],
        "not_measured": [name for name in names if name not in measured],
        "missing": [(name, each["missing"]) for name, each in measured.items() if each["missing"]],
        "texts": max((each["texts"] for each in measured.values()), default=0),
        **_charts(names, measured, lengths),
    }
    document = {
        "models": {name: {key: each[key] for key in each if key != "map"} for name, each in measured.items()},
        "not_measured": values["not_measured"],
        "score_by_length": [score._asdict() for score in lengths],
    }
    return Section("geometry", "Geometry", values, document, tuple(_figures(quantities, measured, lengths)))


def _charts(
    names: list[str], measured: Mapping[str, Mapping[str, Any]], lengths: list[LengthScore]
) -> dict[str, Chart | None]:
    from embrew.report import geometry_charts as charts

    def of(figure: str) -> dict[str, Mapping[str, Any]]:
        return {name: each for name, each in measured.items() if each[figure]}

    tasks = _tasks_that_differ(measured)[: charts.TASKS]
    memory = {name: each for name, each in of("memory").items() if each["memory"]["k"] <= charts.MEMORY}
    kept = list(dict.fromkeys(score.task for score in lengths))[: charts.LENGTH_TASKS]
    shown = [score for score in lengths if score.task in kept]
    return {
        "spectrum": charts.spectrum_chart(names, of("spectrum")) if of("spectrum") else None,
        "cosines": charts.cosines_chart(names, measured, tasks) if tasks else None,
        "lengths": charts.lengths_chart(names, shown) if shown else None,
        "memory": charts.memory_chart(memory) if memory else None,
        "sink": charts.sink_chart(names, of("sink")) if of("sink") else None,
    }


def _tasks_that_differ(measured: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the tasks with pairs, those whose d′ differs most between the models first."""

    def spread(task: str) -> float:
        found = [each["separation"].get(task) for each in measured.values()]
        values = [one["d_prime"] for one in found if one and one["d_prime"] is not None]
        return max(values) - min(values) if values else -1.0

    tasks = dict.fromkeys(task for each in measured.values() for task, found in each["separation"].items() if found)
    return sorted(tasks, key=spread, reverse=True)


def _quantities(measured: Mapping[str, Mapping[str, Any]]) -> Iterator[Quantity]:
    def spectrum(*keys: str) -> Callable[[Mapping[str, Any]], float | None]:
        return lambda each: _at(each, "spectrum", *keys)

    yield Quantity("dimensions", "", spectrum("dimensions"))
    for energy in ("0.9", "0.99"):
        percent = f"{100 * float(energy):.0f} %"
        yield Quantity(f"dimensions with {percent} of the variance", "", spectrum("energy_dimensions", energy))
    yield Quantity("participation ratio (dimensions)", "", spectrum("participation_ratio"))
    yield Quantity("RankMe (dimensions)", "", spectrum("rankme"))
    yield Quantity("uniformity", "lower", lambda each: each["uniformity"])
    yield Quantity("alignment", "lower", lambda each: _at(each, "alignment", "value"))
    for task in _tasks_that_differ(measured):
        yield Quantity(f"d′, {task}", "higher", lambda each, task=task: _at(each, "separation", task, "d_prime"))  # type: ignore[misc]
    if any(each["memory"] for each in measured.values()):
        yield Quantity("memory tokens", "", lambda each: _at(each, "memory", "k"))
        yield Quantity("effective memory tokens", "higher", lambda each: _at(each, "memory", "k_eff"))
        yield Quantity("cosine between memory tokens", "lower", lambda each: _at(each, "memory", "mean_cosine"))
    if any(each["sink"] for each in measured.values()):
        yield Quantity("attention on the first token", "", lambda each: _at(each, "sink", "mean", "first"))


def _at(values: Any, *keys: str) -> Any:
    """Return a value of nested dictionaries; None if one of them is missing."""
    for key in keys:
        values = None if values is None else values.get(key)
    return values


def _cell(quantity: Quantity, figures: Mapping[str, Any] | None) -> str:
    value = None if figures is None else quantity.value(figures)
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def _figures(
    quantities: list[Quantity], measured: Mapping[str, Mapping[str, Any]], lengths: list[LengthScore]
) -> Iterator[Figure]:
    for name, each in measured.items():
        for quantity in quantities:
            value = quantity.value(each)
            if value is not None and not quantity.name.startswith("d′"):
                yield Figure("geometry", name, quantity.name, value)
        for task, found in each["separation"].items():
            if found and found["d_prime"] is not None:
                low, high = found["d_prime_interval"] or (None, None)
                yield Figure("geometry", name, "d′", found["d_prime"], task, low, high)
    for score in lengths:
        quantity_name = f"mean {score.metric}, {score.words} words per {score.of}"
        yield Figure("geometry", score.model, quantity_name, score.score, score.task, score.low, score.high)
