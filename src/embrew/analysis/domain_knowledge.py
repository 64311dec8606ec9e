"""How well a model knows a domain before training, to predict what generative learning may gain.

    shift = bits per byte on the domain / bits per byte on general text    (`perplexity`)
    gap   = 1 − d′ on the domain / d′ on general pairs                     (`separation`)

Source: *Learn Before Represent* says that a model that does not know a domain gains from learning it first, without
figures from which thresholds could be derived. Both figures and the thresholds here are ours, a rule of thumb.

A figure that may be chance gives no verdict: d′ of fewer than `MIN_PAIRS` pairs, d′ whose 95 % interval includes 0,
bits per byte of fewer than `MIN_TEXTS` texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from embrew.analysis.perplexity import BATCH_TOKENS, Perplexity, perplexity_of
from embrew.analysis.qa import QA
from embrew.analysis.separation import Separation, separation_of
from embrew.encoder import Encoder
from embrew.ranking import sample_in_order
from embrew.text_encoder import TextEncoder

MIN_PAIRS = 50  # pairs with different questions and answers; below, d′ is mostly chance
MIN_TEXTS = 20  # of the domain and of general text, for bits per byte
# d′ of normal distributions in which a matched pair has the higher cosine in 76 % and in 92 %
OVERLAPPING, WELL_APART = 1.0, 2.0
SHIFT = (1.05, 1.25)  # bits per byte on the domain over those on general text
GAP = (0.2, 0.5)  # 1 - d′ on the domain over d′ on general pairs
THRESHOLDS: dict[str, list[float] | int] = {
    "d_prime": [OVERLAPPING, WELL_APART],
    "shift": list(SHIFT),
    "gap": list(GAP),
    "min_pairs": MIN_PAIRS,
    "min_texts": MIN_TEXTS,
}
GAINS = "little", "some", "much"
COMPARED = "about as well as", "worse than", "much worse than"


@dataclass(frozen=True)
class Sample:
    """Pairs of question and answer (or none) and texts to measure a model on."""

    name: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    texts: tuple[str, ...]

    @classmethod
    def of_pairs(cls, name: str, pairs: Sequence[QA], *, max_pairs: int | None = None, seed: int = 42) -> Sample:
        """Return a seeded sample of pairs; its texts are the distinct answers.

        Raises:
            ValueError: fewer than two different questions or two different answers.
        """
        chosen = sample_in_order(pairs, max_pairs, seed=seed)
        questions, answers = tuple(pair.question for pair in chosen), tuple(pair.answer for pair in chosen)
        different, texts = set(questions), tuple(dict.fromkeys(answers))
        if min(len(different), len(texts)) < 2:
            raise ValueError(
                f"{name}: different questions: {len(different)}, different answers: {len(texts)}; give two or more of "
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
    separation = perplexity = None
    if sample.questions:
        separation = separation_of(
            encoder, sample.questions, sample.answers, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar
        )
    if isinstance(encoder, Encoder) and sample.texts:
        perplexity = perplexity_of(encoder, sample.texts, batch_tokens=batch_tokens or BATCH_TOKENS)
    return Figures(sample.name, separation, perplexity)


class Finding(NamedTuple):
    """A figure on a model's knowledge, with its interpretation.

    Attributes:
        value: value of the figure.
        level: index in `GAINS`, 0 to 2.
        sentence: sentence with the figure.
        doubt: reason why the figure may be chance, so that it gives no verdict; empty: it does give one.
    """

    value: float
    level: int
    sentence: str
    doubt: str


def diagnose(domain: Figures, general: Figures | None = None) -> dict[str, Any]:
    """Return shift, gap, gain and their interpretation.

    `shift` is bits per byte on the domain over those on general text, `gap` 1 - d′ on the domain over d′ on general
    pairs (negative if the domain's pairs are better separated). `gain` is what generative learning may bring: the
    larger verdict of shift and gap, or that of d′ without them; None if no figure gives a verdict, or if one without a
    verdict could have raised it. `words` are the findings as sentences; for figures without a verdict, the reason.
    """
    d_prime = _d_prime(domain)
    shift, gap = (None, None) if general is None else (_shift(domain, general), _gap(domain, general))
    findings = [finding for finding in (d_prime, shift, gap) if finding is not None]
    compared = [finding for finding in (shift, gap) if finding is not None]
    deciding = compared or findings
    level = max((finding.level for finding in deciding if not finding.doubt), default=None)
    is_open = level != 2 and any(finding.doubt for finding in deciding)
    gain = None if level is None or is_open else GAINS[level]
    words = [finding.sentence for finding in findings if not finding.doubt]
    words += [f"no verdict from {doubt}" for doubt in dict.fromkeys(finding.doubt for finding in findings) if doubt]
    if gain is not None:
        words.append(f"generative learning on {domain.name} may bring {gain} (a rule of thumb, thresholds ours)")
        if not compared:
            words.append("this is by d′ alone; give general pairs or texts for comparison (--general)")
        elif gap is None or gap.doubt:
            words.append("this is by bits per byte alone")
    elif any(finding.doubt for finding in findings):
        words.append(f"no verdict on what generative learning may bring on {domain.name}")
    return {"shift": shift and shift.value, "gap": gap and gap.value, "gain": gain, "words": words}


def _d_prime(domain: Figures) -> Finding | None:
    separation = domain.separation
    if separation is None:
        return None
    level = (separation.d_prime < OVERLAPPING) + (separation.d_prime < WELL_APART)
    distance = ("are well apart", "are apart, and overlap in part", "overlap: it does not tell them apart")[level]
    interval = "" if separation.interval is None else f" [{separation.interval[0]:.2f}, {separation.interval[1]:.2f}]"
    figure = f"d′ {separation.d_prime:.2f}{interval}, {separation.matched} pairs"
    words = f"matched and mismatched pairs of {domain.name} {distance} ({figure})"
    return Finding(separation.d_prime, level, words, _few_pairs(domain.name, separation))


def _shift(domain: Figures, general: Figures) -> Finding | None:
    here, there = domain.perplexity, general.perplexity
    if here is None or there is None:
        return None
    shift = here.bits_per_byte / there.bits_per_byte
    level = (shift >= SHIFT[0]) + (shift >= SHIFT[1])
    words = f"it predicts {domain.name} {COMPARED[level]} {general.name} ({shift:.2f} times the bits per byte)"
    counts = ((domain.name, here.texts), (general.name, there.texts))
    few = ", ".join(f"{count} texts of {name}" for name, count in counts if count < MIN_TEXTS)
    return Finding(shift, level, words, few and f"{few}: bits per byte need {MIN_TEXTS} or more")


def _gap(domain: Figures, general: Figures) -> Finding | None:
    here, there = domain.separation, general.separation
    if here is None or there is None or there.d_prime <= 0:
        return None
    gap = 1 - here.d_prime / there.d_prime
    level = (gap >= GAP[0]) + (gap >= GAP[1])
    comparison = "better than" if gap <= -GAP[0] else COMPARED[level]
    doubts = [doubt for doubt in (_few_pairs(domain.name, here), _few_pairs(general.name, there)) if doubt]
    words = f"it tells pairs of {domain.name} apart {comparison} those of {general.name}"
    return Finding(gap, level, words, "; ".join(doubts))


def _few_pairs(name: str, separation: Separation) -> str:
    """Return why d′ of these pairs may be chance; empty if it is not."""
    if separation.different < MIN_PAIRS:
        different = f" ({separation.different} different)" if separation.different < separation.matched else ""
        return f"{separation.matched} pairs{different} of {name}: d′ needs {MIN_PAIRS} or more"
    if separation.interval is None:  # d′ is infinite
        return ""
    low, high = separation.interval
    if low <= 0 <= high:
        return f"the 95 % interval of d′ of {name}, [{low:.2f}, {high:.2f}], includes 0, which is chance"
    return ""
