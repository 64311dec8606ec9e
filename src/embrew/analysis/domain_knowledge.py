"""Measure how well a model knows a domain before training, to predict what generative learning may gain.

The figures are `separation` and `perplexity` on the domain and, for comparison, on general text. Their interpretation
is a rule of thumb with thresholds of ours: *Learn Before Represent* says that a model that does not know a domain gains
from learning it first, without figures from which thresholds could be derived.

A figure that may be chance gives no verdict: d′ of fewer than `MIN_PAIRS` pairs, d′ whose 95 % interval includes 0,
bits per byte of fewer than `MIN_TEXTS` texts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from embrew.analysis.perplexity import Perplexity, perplexity_of
from embrew.analysis.qa import QA
from embrew.analysis.separation import Separation, separation_of
from embrew.encoder import Encoder
from embrew.sampling import sample_in_order
from embrew.text_encoder.interface import TextEncoder

MIN_PAIRS = 50  # pairs with different questions and answers; below, d′ is mostly chance
MIN_TEXTS = 20  # of the domain and of general text, for bits per byte
OVERLAP, APART = (
    1.0,
    2.0,
)  # d′ of normal distributions: a matched pair has the higher cosine in 76 % and in 92 % of cases
SHIFT = (1.05, 1.25)  # bits per byte on the domain over those on general text
GAP = (0.2, 0.5)  # 1 - d′ on the domain over d′ on general pairs
THRESHOLDS: dict[str, Any] = {"d_prime": [OVERLAP, APART], "shift": list(SHIFT), "gap": list(GAP)}
THRESHOLDS |= {"min_pairs": MIN_PAIRS, "min_texts": MIN_TEXTS}
Gain = Literal["little", "some", "much"]


@dataclass(frozen=True)
class Sample:
    """Pairs of question and answer (or none) and texts to measure a model on."""

    name: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Hash of the pairs and texts in their order."""
        parts = (self.questions, self.answers, self.texts)
        return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()

    @classmethod
    def of_pairs(cls, name: str, pairs: Sequence[QA], *, most: int | None = None, seed: int = 42) -> Sample:
        """Return a seeded sample of pairs; its texts are the distinct answers.

        Raises:
            ValueError: fewer than two different questions or two different answers.
        """
        chosen = sample_in_order(pairs, most, seed=seed)
        questions, answers = tuple(pair.question for pair in chosen), tuple(pair.answer for pair in chosen)
        asked, texts = set(questions), tuple(dict.fromkeys(answers))
        if min(len(asked), len(texts)) < 2:
            raise ValueError(
                f"{name}: different questions: {len(asked)}, different answers: {len(texts)}; give two or more of "
                "each, since pairs are compared with mismatched ones"
            )
        return cls(name, questions, answers, texts)


@dataclass(frozen=True)
class Figures:
    """Figures of a model on a sample; None without pairs, or if the model has no next-token predictions."""

    name: str
    separation: Separation | None
    perplexity: Perplexity | None

    def summary(self) -> dict[str, Any]:
        """Return all figures in one mapping."""
        parts = {"separation": self.separation, "perplexity": self.perplexity}
        return {"data": self.name, **{key: None if part is None else part.summary() for key, part in parts.items()}}


def measure(
    encoder: TextEncoder, sample: Sample, *, batch_tokens: int | None = None, show_progress_bar: bool = False
) -> Figures:
    """Return the separation of a sample's pairs (if any) and the perplexity of its texts (if any)."""
    apart = None
    if sample.questions:
        options: dict[str, Any] = {"batch_tokens": batch_tokens, "show_progress_bar": show_progress_bar}
        apart = separation_of(encoder, sample.questions, sample.answers, **options)
    surprise = None
    if isinstance(encoder, Encoder) and sample.texts:
        surprise = perplexity_of(
            encoder, sample.texts, **({} if batch_tokens is None else {"batch_tokens": batch_tokens})
        )
    return Figures(sample.name, apart, surprise)


def shift(domain: Figures, general: Figures | None) -> float | None:
    """Return bits per byte on the domain over those on general text."""
    if general is None or domain.perplexity is None or general.perplexity is None:
        return None
    return domain.perplexity.bits_per_byte / general.perplexity.bits_per_byte


def gap(domain: Figures, general: Figures | None) -> float | None:
    """Return 1 - d′ on the domain over d′ on general pairs; negative if the domain's pairs are better separated."""
    if general is None or domain.separation is None or general.separation is None or general.separation.d_prime <= 0:
        return None
    return 1 - domain.separation.d_prime / general.separation.d_prime


def no_verdict(domain: Figures, general: Figures | None = None) -> dict[str, str]:
    """Return the reasons by figure (`d_prime`, `gap`, `shift`) for those that give no verdict."""
    reasons = {}
    weak = [_weak_pairs(found) for found in (domain, general) if found is not None and found.separation is not None]
    if domain.separation is not None and weak[0]:
        reasons["d_prime"] = weak[0]
    if gap(domain, general) is not None and any(weak):
        reasons["gap"] = "; ".join(reason for reason in weak if reason)
    if general is not None and domain.perplexity is not None and general.perplexity is not None:
        few = [each for each in (domain, general) if each.perplexity and each.perplexity.texts < MIN_TEXTS]
        if few:
            counts = ", ".join(f"{each.perplexity.texts} texts of {each.name}" for each in few if each.perplexity)
            reasons["shift"] = f"{counts}: bits per byte need {MIN_TEXTS} or more"
    return reasons


def _weak_pairs(found: Figures) -> str:
    """Return why d′ of these pairs may be chance; empty if it is not."""
    apart = found.separation
    assert apart is not None
    different = apart.matched if apart.different is None else apart.different
    if min(apart.matched, different) < MIN_PAIRS:
        counts = f"{apart.matched} pairs" + (f" ({different} different)" if different < apart.matched else "")
        return f"{counts} of {found.name}: d′ needs {MIN_PAIRS} or more"
    if not math.isfinite(apart.d_prime):
        return ""
    if apart.interval is None:
        return f"the interval of d′ of {found.name} is not known; analyze it again"
    low, high = apart.interval
    if low <= 0 <= high:
        return f"the 95 % interval of d′ of {found.name}, [{low:.2f}, {high:.2f}], includes 0, which is chance"
    return ""


def gain(domain: Figures, general: Figures | None = None) -> Gain | None:
    """Return what generative learning may gain: the larger verdict of shift and gap, or that of d′ without them.

    None if no figure gives a verdict (see `no_verdict`), or if one without a verdict could have raised the result.
    """
    moved, lacking = shift(domain, general), gap(domain, general)
    without = no_verdict(domain, general)
    levels: list[int] = [
        sum(value >= threshold for threshold in thresholds)
        for name, value, thresholds in (("shift", moved, SHIFT), ("gap", lacking, GAP))
        if value is not None and name not in without
    ]
    if moved is None and lacking is None and domain.separation is not None and "d_prime" not in without:
        levels = [sum(domain.separation.d_prime < threshold for threshold in (OVERLAP, APART))]
    if not levels or ({"shift", "gap"} & without.keys() and max(levels) < 2):
        return None
    return ("little", "some", "much")[max(levels)]


def in_words(domain: Figures, general: Figures | None = None) -> list[str]:
    """Return the findings as sentences; for figures without a verdict, the reason."""
    lines = []
    without = no_verdict(domain, general)
    apart = domain.separation
    if apart is not None and "d_prime" not in without:
        distance = (
            "overlap: it does not tell them apart" if apart.d_prime < OVERLAP
            else "are apart, and overlap in part" if apart.d_prime < APART
            else "are well apart"
        )  # fmt: skip
        lines.append(f"matched and mismatched pairs of {domain.name} {distance} ({_d_prime(domain)})")
    moved, lacking = shift(domain, general), gap(domain, general)
    if moved is not None and general is not None and "shift" not in without:
        how = "about as well as" if moved < SHIFT[0] else "worse than" if moved < SHIFT[1] else "much worse than"
        lines.append(f"it predicts {domain.name} {how} {general.name} ({moved:.2f} times the bits per byte)")
    if lacking is not None and general is not None and "gap" not in without:
        how = (
            "about as well as" if abs(lacking) < GAP[0]
            else "better than" if lacking < 0
            else "worse than" if lacking < GAP[1]
            else "much worse than"
        )  # fmt: skip
        lines.append(f"it tells pairs of {domain.name} apart {how} those of {general.name}")
    for reason in dict.fromkeys(without.values()):
        lines.append(f"no verdict from {reason}")
    level = gain(domain, general)
    if level is not None:
        lines.append(f"generative learning on {domain.name} may bring {level} (a rule of thumb, thresholds ours)")
        if moved is None and lacking is None:
            lines.append("this is by d′ alone; give general pairs or texts for comparison (--general)")
        elif lacking is None or "gap" in without:
            lines.append("this is by bits per byte alone")
    elif without:
        lines.append(f"no verdict on what generative learning may bring on {domain.name}")
    return lines


def _d_prime(found: Figures) -> str:
    """Return d′ with its interval and the number of pairs."""
    apart = found.separation
    assert apart is not None
    between = "" if apart.interval is None else f" [{apart.interval[0]:.2f}, {apart.interval[1]:.2f}]"
    return f"d′ {apart.d_prime:.2f}{between}, {apart.matched} pairs"
