"""Scores and costs of models, and Pareto fronts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

COSTS = ("milliseconds", "bytes")


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


def mark_front(points: Iterable[Point]) -> list[Point]:
    """Return the points with the Pareto fronts that each is on."""
    found = list(points)
    fronts = {cost: _front(found, cost) for cost in COSTS}
    return [point._replace(fronts=tuple(cost for cost in COSTS if i in fronts[cost])) for i, point in enumerate(found)]


def _front(points: Sequence[Point], cost: str) -> set[int]:
    order = [i for i, point in enumerate(points) if getattr(point, cost) is not None]
    order.sort(key=lambda i: (getattr(points[i], cost), -points[i].score))
    kept, best = set[int](), float("-inf")
    for i in order:
        if points[i].score > best:
            kept.add(i)
            best = points[i].score
    return kept
