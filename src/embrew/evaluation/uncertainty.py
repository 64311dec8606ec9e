"""Uncertainty of scores: bootstrap intervals over a task's examples, and paired tests between two models.

Examples are drawn with replacement (Efron 1979); two models are compared on the same draws (Berg-Kirkpatrick, Burkett
and Klein, "An Empirical Investigation of Statistical Significance in NLP", 2012). Where a model has several seeds, a
seed is drawn with replacement too. P-values of several tests are corrected by Holm's method (1979).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from embrew.evaluation.kinds import KINDS
from embrew.evaluation.results import Result

SAMPLES = 1000
LEVEL = 0.05  # of tests; intervals hold 1 - LEVEL
_BLOCK = 200_000  # drawn examples that are in memory at a time


@dataclass(frozen=True)
class Difference:
    """Score of B minus score of A, its 95 % interval and its two-sided bootstrap p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def interval(result: Result, *, samples: int = SAMPLES, seed: int = 0) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a main score; None if the result has no examples."""
    if not result.examples:
        return None
    return quantiles(bootstrap([[result]], samples=samples, seed=seed)[0])


def compare(a: Result, b: Result) -> Difference | None:
    """Return the paired bootstrap of two results of one task; None if one has no examples.

    Raises:
        ValueError: the two results are not of the same examples.
    """
    if not (a.examples and b.examples):
        return None
    check_same_examples([a, b])
    of_a, of_b = bootstrap([[a], [b]])
    return paired_test(of_b - of_a, b.main_score - a.main_score)


def check_same_examples(results: Sequence[Result]) -> None:
    """Raise if results of one task are of different examples."""
    first, *others = results
    for other in others:
        same = _count(first) == _count(other) and all(
            first.examples[name] == other.examples[name]
            for name in ("gold", "query")
            if name in first.examples and name in other.examples
        )
        if not same:
            raise ValueError(
                f"{first.task}: the two results are of different examples; evaluate both models on the same data"
            )


def bootstrap(models: Sequence[Sequence[Result]], *, samples: int = SAMPLES, seed: int = 0) -> np.ndarray:
    """Return main scores of bootstrap samples of one task, float64 `(models, samples)`.

    All models have the same draws of examples. A model with several seeds has the mean over as many draws of its seeds,
    which are not paired with those of other models.

    Args:
        models: Results of each model, one per seed, all of the same examples.
        samples: Number of samples.
        seed: Random seed.
    """
    results = [result for seeds in models for result in seeds]
    draws = _draws(_count(results[0]), samples, seed)
    scores = np.concatenate([np.stack([_scores(result, times) for result in results]) for times in draws], axis=1)
    means = []
    for number, seed_scores in enumerate(np.split(scores, np.cumsum([len(seeds) for seeds in models])[:-1])):
        # as many draws of the seeds as there are
        drawn = np.random.default_rng((seed, number)).integers(0, len(seed_scores), size=seed_scores.shape)
        means.append(np.take_along_axis(seed_scores, drawn, axis=0).mean(axis=0))
    return np.stack(means)


def paired_test(differences: np.ndarray, observed: float) -> Difference:
    """Return the difference whose bootstrap samples are given, `(samples,)`."""
    low, high = quantiles(differences)
    # Ties count half on either side; one is added to numerator and denominator, so that no p-value is 0.
    samples = len(differences)
    below = float((differences < 0).sum() + (differences == 0).sum() / 2)
    p_value = min(1.0, 2 * (min(below, samples - below) + 1) / (samples + 1))
    return Difference(observed, low, high, p_value)


def quantiles(values: np.ndarray) -> tuple[float, float]:
    """Return the bounds of the central 95 % of samples."""
    low, high = np.quantile(values, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method, in the same order.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def _count(result: Result) -> int:
    return len(result.examples["score"] if "score" in result.examples else result.examples["predicted"])


def _scores(result: Result, times: np.ndarray) -> np.ndarray:
    """Return the main score in each sample, `(samples,)`; `times` says how often each example is in it."""
    if "score" in result.examples:
        scores = np.asarray(result.examples["score"], dtype=np.float64)
        return np.asarray(scores @ times / len(scores))
    statistic = KINDS[result.kind].statistic
    assert statistic is not None, result.kind
    examples = {name: np.asarray(values) for name, values in result.examples.items() if values}
    return statistic(examples, result.scores, times)


def _draws(count: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each example is in each sample, float64 `(examples, samples of a block)`."""
    generator = np.random.default_rng(seed)
    rows = max(1, _BLOCK // count)
    for start in range(0, samples, rows):
        block = min(rows, samples - start)
        drawn = generator.integers(0, count, size=(block, count))
        drawn += np.arange(block)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=block * count).reshape(block, count)
        yield np.ascontiguousarray(times.T, dtype=np.float64)
