"""Whether a model knows a domain before anything is trained, and what generative learning may bring there.

The figures are those of `separation` and `perplexity`, on the domain and, to compare with, on general text. What they
are said to mean follows thresholds that are ours. *Learn Before Represent* says that a model which does not know a
domain gains from learning it first, and gives no figures from which thresholds could be read: it is a rule of thumb.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from embrew.analysis.perplexity import Perplexity, perplexity_of
from embrew.analysis.separation import Separation, separation_of
from embrew.data.qa import QA
from embrew.modeling.encoder import Encoder
from embrew.protocol import TextEncoder

FEW = 50  # pairs below which d′ is mostly chance
OVERLAP, APART = 1.0, 2.0  # d′: a matched pair beats a mismatched one in 76 % and in 92 % of cases, if both are normal
SHIFT = (1.05, 1.25)  # bits a byte on the domain over those on general text
GAP = (0.2, 0.5)  # share of the general d′ that is lacking on the domain
THRESHOLDS: dict[str, Any] = {"d_prime": [OVERLAP, APART], "shift": list(SHIFT), "gap": list(GAP)}
Gain = Literal["little", "some", "much"]


@dataclass(frozen=True)
class Sample:
    """What a model is diagnosed on: pairs (none: texts alone), and texts."""

    name: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Says exactly which pairs and texts these are, in which order."""
        parts = (self.questions, self.answers, self.texts)
        return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()

    @classmethod
    def of_pairs(cls, name: str, pairs: Sequence[QA], *, most: int | None = None, seed: int = 42) -> Sample:
        """A seeded sample of pairs, whose different answers are the texts."""
        chosen = list(pairs)
        if most is not None and len(chosen) > most:
            chosen = [chosen[i] for i in sorted(random.Random(seed).sample(range(len(chosen)), most))]
        answers = tuple(pair.answer for pair in chosen)
        return cls(name, tuple(pair.question for pair in chosen), answers, tuple(dict.fromkeys(answers)))


@dataclass(frozen=True)
class Found:
    """What a model makes of a sample; None where it has no pairs, or the model no next-token predictions."""

    name: str
    separation: Separation | None
    perplexity: Perplexity | None

    def summary(self) -> dict[str, Any]:
        """All figures in one mapping."""
        parts = {"separation": self.separation, "perplexity": self.perplexity}
        return {"data": self.name, **{key: None if part is None else part.summary() for key, part in parts.items()}}


def examine(
    encoder: TextEncoder, sample: Sample, *, batch_tokens: int | None = None, show_progress_bar: bool = False
) -> Found:
    """Separation of a sample's pairs (if any) and perplexity of its texts (if any)."""
    apart = None
    if sample.questions:
        options: dict[str, Any] = {"batch_tokens": batch_tokens, "show_progress_bar": show_progress_bar}
        apart = separation_of(encoder, sample.questions, sample.answers, **options)
    surprise = None
    if isinstance(encoder, Encoder) and sample.texts:
        surprise = perplexity_of(
            encoder, sample.texts, **({} if batch_tokens is None else {"batch_tokens": batch_tokens})
        )
    return Found(sample.name, apart, surprise)


def shift(domain: Found, general: Found | None) -> float | None:
    """Bits a byte on the domain over those on general text."""
    if general is None or domain.perplexity is None or general.perplexity is None:
        return None
    return domain.perplexity.bits_per_byte / general.perplexity.bits_per_byte


def gap(domain: Found, general: Found | None) -> float | None:
    """Which share of the general d′ is lacking on the domain; negative where the domain is held apart better."""
    if general is None or domain.separation is None or general.separation is None or general.separation.d_prime <= 0:
        return None
    return 1 - domain.separation.d_prime / general.separation.d_prime


def gain(domain: Found, general: Found | None = None) -> Gain | None:
    """What generative learning may bring: the larger of what shift and gap say; without them, by d′ alone."""
    moved, lacking = shift(domain, general), gap(domain, general)
    levels = [
        sum(value >= threshold for threshold in thresholds)
        for value, thresholds in ((moved, SHIFT), (lacking, GAP))
        if value is not None
    ]
    if not levels and domain.separation is not None:
        levels = [sum(domain.separation.d_prime < threshold for threshold in (OVERLAP, APART))]
    return (("little", "some", "much")[max(levels)]) if levels else None


def in_words(domain: Found, general: Found | None = None) -> list[str]:
    """The findings in sentences."""
    lines = []
    if domain.separation is not None:
        d_prime = domain.separation.d_prime
        place = (
            "overlap: it does not tell them apart" if d_prime < OVERLAP
            else "are apart, and overlap in part" if d_prime < APART
            else "are well apart"
        )  # fmt: skip
        lines.append(f"matched and mismatched pairs of {domain.name} {place} (d′ {d_prime:.2f})")
        if domain.separation.matched < FEW:
            lines.append(f"{domain.separation.matched} pairs are few; d′ is mostly chance below {FEW}")
    moved, lacking = shift(domain, general), gap(domain, general)
    if moved is not None and general is not None:
        how = "about as well as" if moved < SHIFT[0] else "worse than" if moved < SHIFT[1] else "much worse than"
        lines.append(f"it predicts {domain.name} {how} {general.name} ({moved:.2f} times the bits a byte)")
    if lacking is not None and general is not None:
        how = (
            "about as well as" if abs(lacking) < GAP[0]
            else "better than" if lacking < 0
            else "worse than" if lacking < GAP[1]
            else "much worse than"
        )  # fmt: skip
        lines.append(f"it tells pairs of {domain.name} apart {how} those of {general.name}")
    level = gain(domain, general)
    if level is not None:
        lines.append(f"generative learning on {domain.name} may bring {level} (a rule of thumb, thresholds ours)")
        if moved is None and lacking is None:
            lines.append("that is by d′ alone; general pairs or texts to compare with say more (--general)")
    return lines
