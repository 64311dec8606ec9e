"""Uncertainty of scores: bootstrap intervals over a task's examples, and paired tests between two models.

Examples are drawn with replacement (Efron 1979); two models are compared on the same draws
(Berg-Kirkpatrick, Burkett and Klein, "An Empirical Investigation of Statistical Significance in NLP", 2012).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embrew.evaluation.kinds import KINDS
from embrew.evaluation.report import Result


@dataclass(frozen=True)
class Difference:
    """Score of B minus score of A, its 95 % interval and its two-sided bootstrap p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def interval(result: Result, *, samples: int = 1000, seed: int = 0) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a main score; None if the result has no examples."""
    if not result.examples:
        return None
    scores = _samples(result, _draws(_count(result.examples), samples, seed))
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)


def compare(a: Result, b: Result, *, samples: int = 1000, seed: int = 0) -> Difference | None:
    """Return the paired bootstrap of two results of one task; None if one has no examples.

    Raises:
        ValueError: the two results are not of the same examples.
    """
    if not a.examples or not b.examples:
        return None
    count = _count(a.examples)
    if count != _count(b.examples) or a.examples.get("gold") != b.examples.get("gold"):
        raise ValueError(f"{a.task}: the two results are of different examples; evaluate both models on the same data")
    draws = _draws(count, samples, seed)
    differences = _samples(b, draws) - _samples(a, draws)
    low, high = np.quantile(differences, [0.025, 0.975])
    # Ties count half on either side; one is added to numerator and denominator, so that no p-value is 0.
    below = float((differences < 0).sum() + (differences == 0).sum() / 2)
    p_value = min(1.0, 2 * (min(below, samples - below) + 1) / (samples + 1))
    return Difference(b.main_score - a.main_score, float(low), float(high), p_value)


def _count(examples: Mapping[str, list[Any]]) -> int:
    return len(examples["score"] if "score" in examples else examples["predicted"])


def _draws(count: int, samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, count, size=(samples, count))


def _samples(result: Result, draws: np.ndarray) -> np.ndarray:
    """Return the main score of each sample, `(samples,)`."""
    if "score" in result.examples:
        return np.asarray(result.examples["score"], dtype=np.float64)[draws].mean(axis=1)
    statistic = KINDS[result.kind].statistic
    assert statistic is not None, result.kind
    examples = {name: np.asarray(values) for name, values in result.examples.items() if values}
    return np.array([statistic({n: v[rows] for n, v in examples.items()}, result.scores) for rows in draws])
