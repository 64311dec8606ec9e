"""Random choices with their probabilities: drawn one by one, or followed on every path.

A text's probability is the product of its choices' probabilities if no other choices give the same text. Where several
do, it is the sum over them, and `distribution` adds them up.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Choices(Protocol):
    """Where a generator takes its choices from."""

    def choose(self, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """Return one of the options; without weights all are equally likely."""
        ...


Generator = Callable[[Choices], str]


class Drawn:
    """Choices drawn from a seeded source; `log_prob` is the sum of their log-probabilities in nats."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.log_prob = 0.0

    def choose(self, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """Draw one of the options."""
        if weights is None and options:
            self.log_prob -= math.log(len(options))
            return self.rng.choice(options)
        shares = _shares(options, weights)
        (place,) = self.rng.choices(range(len(options)), shares)
        self.log_prob += math.log(shares[place])
        return options[place]


class _Path:
    """Choices that follow given places, then the first option; `counts` and `prob` say what was met."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = list(places)
        self.counts: list[int] = []
        self.prob = 1.0

    def choose(self, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        step = len(self.counts)
        if step == len(self.places):
            self.places.append(0)
        self.counts.append(len(options))
        self.prob *= _shares(options, weights)[self.places[step]]
        return options[self.places[step]]


def derivations(write: Generator) -> Iterator[tuple[str, float]]:
    """Yield text and probability of every path of choices; for small generators only."""
    places: list[int] | None = []
    while places is not None:
        path = _Path(places)
        text = write(path)
        if path.prob:
            yield text, path.prob
        places = path.places[: len(path.counts)]
        while places and places[-1] + 1 == path.counts[len(places) - 1]:
            places.pop()
        places = [*places[:-1], places[-1] + 1] if places else None


def distribution(write: Generator) -> dict[str, float]:
    """Return the probability of every text, added up over its derivations; for small generators only."""
    found: dict[str, float] = {}
    for text, prob in derivations(write):
        found[text] = found.get(text, 0.0) + prob
    return found


def sample(write: Generator, rng: random.Random) -> tuple[str, float]:
    """Return a text and the log-probability of its choices, in nats."""
    drawn = Drawn(rng)
    return write(drawn), drawn.log_prob


def _shares(options: Sequence[T], weights: Sequence[float] | None) -> list[float]:
    if not options:
        raise ValueError("there is nothing to choose from")
    if weights is None:
        return [1 / len(options)] * len(options)
    return [weight / sum(weights) for weight in weights]
