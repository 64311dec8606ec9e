"""Separation of matched from mismatched pairs by an encoder's cosines.

    ratio = μ₊ / μ₋
    d′    = (μ₊ − μ₋) / √((σ₊² + σ₋²) / 2)

with μ and σ² mean and variance of the cosines of questions with their own answers (₊) and with the other pairs' answers
(₋). d′ is the sensitivity index of signal detection theory. It does not change if all cosines are shifted or scaled
alike, which a direction shared by a language model's vectors does; the ratio changes, and is undefined if μ₋ ≤ 0.

Source: *Learn Before Represent* names a "Separation Ratio" that predicts the gain of generative learning on a domain,
without a definition; the ratio and d′ here are ours. The standard error of d′ is the jackknife's: each pair is left out
once, with all its combinations, which accounts for mismatched combinations that share questions and answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.text_encoder import encode_options, unit_vectors

if TYPE_CHECKING:
    from embrew.text_encoder import TextEncoder

NORMAL_95 = 1.96  # half the width of a 95 % interval, in standard errors
BINS = np.linspace(-1, 1, 2001)


@dataclass(frozen=True)
class Separation:
    """Cosines of matched and of mismatched pairs.

    Attributes:
        matched: number of pairs.
        mismatched: number of combinations of a question with another pair's answer, without those with the same
            question or answer.
        means: mean cosine of matched and of mismatched pairs.
        deviations: standard deviations, likewise.
        nearest: share of the questions whose own answer is nearer than all others.
        histograms: counts by `BINS`, matched and mismatched, `(2, 2000)`.
        different: number of different questions or of different answers, whichever is smaller.
        error: standard error of d′ (jackknife over pairs); None if it is not known.
    """

    matched: int
    mismatched: int
    means: tuple[float, float]
    deviations: tuple[float, float]
    nearest: float
    histograms: np.ndarray
    different: int
    error: float | None = None

    @property
    def d_prime(self) -> float:
        """Difference of the means in units of the pooled standard deviation."""
        spread = math.sqrt((self.deviations[0] ** 2 + self.deviations[1] ** 2) / 2)
        distance = self.means[0] - self.means[1]
        return distance / spread if spread else math.copysign(math.inf, distance) if distance else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of d′; None if its standard error is not known."""
        if self.error is None:
            return None
        return self.d_prime - NORMAL_95 * self.error, self.d_prime + NORMAL_95 * self.error

    @property
    def ratio(self) -> float | None:
        """Mean cosine of matched pairs over that of mismatched pairs; None if the latter is not positive."""
        return self.means[0] / self.means[1] if self.means[1] > 0 else None

    def summary(self) -> dict[str, Any]:
        """Return the figures without the histograms; an infinite d′ is None."""
        return {
            "pairs": self.matched,
            "mismatched": self.mismatched,
            "different": self.different,
            "d_prime": self.d_prime if math.isfinite(self.d_prime) else None,
            "d_prime_interval": list(self.interval) if self.interval and math.isfinite(self.d_prime) else None,
            "separation_ratio": self.ratio,
            "mean_matched": self.means[0],
            "mean_mismatched": self.means[1],
            "sd_matched": self.deviations[0],
            "sd_mismatched": self.deviations[1],
            "nearest_is_own": self.nearest,
        }


def separation(questions: np.ndarray, answers: np.ndarray, *, same: np.ndarray) -> Separation:
    """Return the separation of row i with row i from row i with all other rows.

    Products are in float32, sums in float64.

    Args:
        questions: `(pairs, dimensions)` unit vectors.
        answers: likewise.
        same: `(2, pairs)` integers that are equal where questions (first row) or answers (second) are the same text;
            there are two or more different questions, and answers.
    """
    matched = (questions.astype(np.float64) * answers).sum(1)
    cosines = questions @ answers.T
    other = (same[0, :, None] != same[0]) & (same[1, :, None] != same[1])
    values = np.where(other, cosines, 0).astype(np.float64)
    powers = other, values, values**2
    sums = np.array([power.sum() for power in powers])  # number, sum, sum of squares of mismatched combinations
    of_pair = np.stack([power.sum(0) + power.sum(1) for power in powers])
    mean = sums[1] / sums[0]
    return Separation(
        matched=len(matched),
        mismatched=int(sums[0]),
        means=(float(matched.mean()), float(mean)),
        deviations=(float(matched.std()), math.sqrt(max(sums[2] / sums[0] - mean**2, 0.0))),
        nearest=float((matched > np.where(other, cosines, -np.inf).max(1)).mean()),
        histograms=np.stack([np.histogram(cosine.clip(-1, 1), BINS)[0] for cosine in (matched, cosines[other])]),
        different=min(len(np.unique(codes)) for codes in same),
        error=_jackknife(matched, sums, of_pair),
    )


def _jackknife(cosines: np.ndarray, sums: np.ndarray, of_pair: np.ndarray) -> float | None:
    """Return the standard error of d′ by leaving out each pair; None if d′ is infinite or no mismatched pairs remain.

    Args:
        cosines: cosines of the matched pairs.
        sums: number, sum and sum of squares of the mismatched combinations.
        of_pair: the same of the combinations with each pair, `(3, pairs)`.
    """
    pairs = len(cosines)
    count, total, squares = sums[:, None] - of_pair
    if pairs < 3 or (count < 1).any():
        return None
    matched = (cosines.sum() - cosines) / (pairs - 1)
    matched_variance = ((cosines**2).sum() - cosines**2) / (pairs - 1) - matched**2
    mismatched = total / count
    variance = (matched_variance.clip(0) + (squares / count - mismatched**2).clip(0)) / 2
    if not (variance > 0).all():
        return None
    without = (matched - mismatched) / np.sqrt(variance)
    return math.sqrt((pairs - 1) * float(without.var()))


def separation_of(
    encoder: TextEncoder,
    questions: Sequence[str],
    answers: Sequence[str],
    *,
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> Separation:
    """Return the separation of an encoder's vectors: questions as queries, answers as documents."""
    options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    vectors, codes = [], []
    for texts, encode in ((questions, encoder.encode_query), (answers, encoder.encode_document)):
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        codes.append(np.array([rows[text] for text in texts]))
        vectors.append(unit_vectors(encode(list(rows), **options), what="pairs", texts=list(rows))[codes[-1]])
    return separation(*vectors, same=np.stack(codes))
