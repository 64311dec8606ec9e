"""Verdicts on a paper's orderings, computed from scores by seed. Used by `result_orderings.py`.

The rule is printed on `benchmarks/evidence.md`; nothing here reads a file or knows a method.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from scipy.stats import f as f_distribution
from scipy.stats import t as t_distribution

FOR, AGAINST, OPEN, NOT_RUN = "for", "against", "open", "not run"
REPRODUCED, REFUTED, UNRESOLVED, NOT_MEASURED = "reproduced", "refuted", "not resolvable here", "not measured"
VERDICTS = (REPRODUCED, REFUTED, UNRESOLVED, NOT_MEASURED)
ABOVE, AT_LEAST, EQUAL, STEADIER = ">", "≥", "≈", "varies less than"
RELATIONS = (ABOVE, AT_LEAST, EQUAL, STEADIER)
SEEDS = 3  # with at least three seeds in common, their signs decide
CONFIDENCE = 0.95
Ends = tuple[float, float]


@dataclass(frozen=True)
class Scores:
    """Scores of a row: one per seed; or one, of a row in which nothing is drawn (`fixed`)."""

    values: Sequence[float]
    seeds: Sequence[Hashable] = ()
    fixed: bool = False

    def by_seed(self) -> dict[Hashable, float]:
        """Return the values by seed; none if the seeds are not known."""
        return dict(zip(self.seeds, self.values, strict=True)) if self.seeds else {}


@dataclass(frozen=True)
class Outcome:
    """What a comparison shows: for or against the paper's claim, open, or not run; and why it is open.

    `seeds` is the number of seeds whose signs decided on `>`, `agreeing` that of those above 0.
    """

    result: str
    difference: float | None = None
    ends: Ends | None = None
    why: str = ""
    seeds: int = 0
    agreeing: int = 0

    @property
    def by_sign(self) -> bool:
        """Whether the seeds agree on a direction and the interval of their mean does not exclude 0."""
        return (
            self.result in (FOR, AGAINST)
            and self.seeds > 0
            and self.ends is not None
            and self.ends[0] <= 0 <= self.ends[1]
        )


def compare(
    better: Scores, than: Scores, relation: str = ABOVE, *, margin: float = 0.0, lower: bool = False
) -> Outcome:
    """Return what the scores of two rows show of `better relation than`.

    Args:
        better: the row that the paper has ahead.
        than: the other row.
        relation: `>`, `≥` (not more than `margin` below), `≈` (within `margin`), or `varies less than`.
        margin: of `≥` and `≈`, in the units of the scores.
        lower: lower scores are better.

    Raises:
        ValueError: the relation is not known.
    """
    if relation not in RELATIONS:
        raise ValueError(f"no relation {relation!r}; known are {', '.join(RELATIONS)}")
    if relation == STEADIER:
        return _spreads(better, than)
    sign = -1.0 if lower else 1.0
    pairs = _pairs(better, than)
    if len(pairs) >= SEEDS:
        differences = [sign * (one - other) for one, other in pairs]
        results = {_side(value, value, relation, margin) for value in differences}
        sides = {value > 0 for value in differences}
        agree = len(results) == 1 and (relation != EQUAL or AGAINST not in results or len(sides) == 1)
        result = results.pop() if agree else OPEN
        mean, why = statistics.fmean(differences), "the seeds disagree" if result == OPEN else ""
        counted = (len(pairs), sum(value > 0 for value in differences)) if relation == ABOVE else (0, 0)
        return Outcome(result, mean, _interval(differences), why, *counted)
    difference = sign * (statistics.fmean(better.values) - statistics.fmean(than.values))
    known = _welch(better, than)
    if known is None:
        return Outcome(OPEN, difference, why="nothing drawn" if better.fixed and than.fixed else "one seed")
    low, high = difference - known, difference + known
    result = _side(low, high, relation, margin)
    return Outcome(result, difference, (low, high), "the interval does not decide" if result == OPEN else "")


def measured(difference: float, low: float, high: float, *, against: float = 0.0) -> Outcome:
    """Return what a measured interval shows of a claim that the value is above `against`."""
    result = _side(low - against, high - against, ABOVE, 0.0)
    return Outcome(result, difference, (low, high), "the interval does not decide" if result == OPEN else "")


def combine(outcomes: Sequence[Outcome]) -> str:
    """Return the verdict on a claim of which every comparison is a part."""
    results = {outcome.result for outcome in outcomes}
    if results <= {NOT_RUN}:
        return NOT_MEASURED
    if AGAINST in results:
        return REFUTED
    return REPRODUCED if results == {FOR} else UNRESOLVED


def _pairs(better: Scores, than: Scores) -> list[tuple[float, float]]:
    """Return the scores of the seeds that both rows have; a fixed row has each seed."""
    if better.fixed and than.fixed:
        return []
    if than.fixed:
        return [(value, than.values[0]) for value in better.values]
    if better.fixed:
        return [(better.values[0], value) for value in than.values]
    ours, theirs = better.by_seed(), than.by_seed()
    return [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]


def _side(low: float, high: float, relation: str, margin: float) -> str:
    """Return which side of a claim an interval lies on."""
    if relation == ABOVE:
        return FOR if low > 0 else AGAINST if high < 0 else OPEN
    if relation == AT_LEAST:
        return FOR if low >= -margin else AGAINST if high < -margin else OPEN
    within, outside = -margin <= low and high <= margin, low > margin or high < -margin
    return FOR if within else AGAINST if outside else OPEN


def _interval(differences: Sequence[float]) -> Ends:
    """Return the interval of a mean by Student's t."""
    half = statistics.stdev(differences) / math.sqrt(len(differences))
    half *= float(t_distribution.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    mean = statistics.fmean(differences)
    return mean - half, mean + half


def _welch(better: Scores, than: Scores) -> float | None:
    """Return half the width of Welch's interval of the difference of two means; None with one seed, or no spread."""
    parts = []
    for row in (better, than):
        if len(row.values) > 1:
            parts.append((statistics.variance(row.values) / len(row.values), len(row.values) - 1))
        elif not row.fixed:
            return None
    total = sum(variance for variance, _ in parts)
    if total == 0:
        return None
    freedom = total**2 / sum(variance**2 / count for variance, count in parts)
    return math.sqrt(total) * float(t_distribution.ppf((1 + CONFIDENCE) / 2, freedom))


def _spreads(better: Scores, than: Scores) -> Outcome:
    """Return what the ratio of variances between seeds shows; the difference is the ratio."""
    if min(len(better.values), len(than.values)) < 2:
        return Outcome(OPEN, why="one seed")
    ours, theirs = statistics.variance(better.values), statistics.variance(than.values)
    if ours == 0:
        return Outcome(OPEN, why="no spread")
    ratio, freedom = theirs / ours, (len(than.values) - 1, len(better.values) - 1)
    low = ratio / float(f_distribution.ppf((1 + CONFIDENCE) / 2, *freedom))
    high = ratio / float(f_distribution.ppf((1 - CONFIDENCE) / 2, *freedom))
    result = _side(low - 1, high - 1, ABOVE, 0.0)
    return Outcome(result, ratio, (low, high), "the interval does not decide" if result == OPEN else "")
