"""How well a model knows a domain before training, to predict what generative learning may gain.

    shift = bits per byte on the domain / bits per byte on general text
    gap   = 1 − d′ on the domain / d′ on general pairs

Source: *Learn Before Represent* says that a model that does not know a domain gains from learning it first, without
figures from which thresholds could be derived. Both figures and the thresholds here are ours, a rule of thumb.

A figure that may be chance gives no verdict: d′ of fewer than `MIN_PAIRS` pairs, d′ whose 95 % interval includes 0,
bits per byte of fewer than `MIN_TEXTS` texts.

Perplexity of texts under a causal language model:

    perplexity    = exp(−Σ log p / tokens)
    bits per byte = −Σ log₂ p / UTF-8 bytes

over all tokens of all texts, each predicted from those before it in its window. Source: *The Pile* (Gao et al., 2020),
section 3.1, for bits per byte.

Separation of matched from mismatched pairs by an encoder's cosines:

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
from typing import Any, NamedTuple, TypedDict

import numpy as np

from embrew.analysis.qa import QA
from embrew.encoder import Encoder
from embrew.evaluation.targets import scores_under
from embrew.model.attention import Attention
from embrew.ranking import sample_in_order
from embrew.text.tokens import Row, Segment
from embrew.text_encoder import TextEncoder, encode_options, unit_vectors

NORMAL_95 = 1.96  # half the width of a 95 % interval, in standard errors
BINS = np.linspace(-1, 1, 2001)
BATCH_TOKENS = 4096
WINDOW = 512  # maximum tokens of a row, the first token included
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

    def summary(self) -> dict[str, float | list[float] | None]:
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


@dataclass(frozen=True)
class Perplexity:
    """Loss of a language model on texts.

    Attributes:
        texts: number of texts.
        tokens: number of predicted tokens.
        bytes: number of UTF-8 bytes of the predicted text.
        nats: −Σ log p.
    """

    texts: int
    tokens: int
    bytes: int
    nats: float

    @property
    def perplexity(self) -> float:
        """exp(−mean log p) per token; comparable only between models with the same tokenizer."""
        return math.exp(self.nats / self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """−Σ log₂ p over bytes: comparable between tokenizers, and between kinds of text."""
        return self.nats / math.log(2) / self.bytes

    def summary(self) -> dict[str, float]:
        """Return all figures."""
        sizes = {"texts": self.texts, "tokens": self.tokens, "bytes": self.bytes}
        return {**sizes, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}


def perplexity_of(encoder: Encoder, texts: Sequence[str], *, batch_tokens: int = BATCH_TOKENS) -> Perplexity | None:
    """Return the perplexity of texts under an encoder's causal language model; None for BERT-type encoders.

    A text is split into windows that do not overlap, each after what precedes a target without a text
    (the template's `start_row`: BOS), so that every token is predicted once.

    Args:
        encoder: the encoder; its adapter is active.
        texts: texts to predict; none of them is blank.
        batch_tokens: padded tokens per batch.

    Raises:
        ValueError: no token to predict.
    """
    if encoder.backbone.is_bert_type:
        return None
    first, rows = encoder.template.start_row, []
    tokenized = encoder.tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)
    for ids in tokenized["input_ids"]:
        rows += [first + Row.labelled(ids[i : i + WINDOW - 1], Segment.TARGET) for i in range(0, len(ids), WINDOW - 1)]
    if not rows:
        raise ValueError("no text has a token to predict; give texts that are not empty")
    encoder.eval()
    scores = scores_under(encoder, rows, Attention("causal"), batch_tokens=batch_tokens)
    losses = [losses_of_row for losses_of_row, _ in scores]
    nats = sum(float(losses_of_row.double().sum()) for losses_of_row in losses)
    return Perplexity(len(texts), sum(map(len, losses)), sum(len(text.encode()) for text in texts), nats)


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


def measure_knowledge(
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


class KnowledgeFinding(NamedTuple):
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


class Diagnosis(TypedDict):
    """Findings on a model's knowledge of a domain; see `diagnose`."""

    shift: float | None
    gap: float | None
    gain: str | None
    words: list[str]


def diagnose(domain: Figures, general: Figures | None = None) -> Diagnosis:
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


def _d_prime(domain: Figures) -> KnowledgeFinding | None:
    separation = domain.separation
    if separation is None:
        return None
    level = (separation.d_prime < OVERLAPPING) + (separation.d_prime < WELL_APART)
    distance = ("are well apart", "are apart, and overlap in part", "overlap: it does not tell them apart")[level]
    interval = "" if separation.interval is None else f" [{separation.interval[0]:.2f}, {separation.interval[1]:.2f}]"
    figure = f"d′ {separation.d_prime:.2f}{interval}, {separation.matched} pairs"
    words = f"matched and mismatched pairs of {domain.name} {distance} ({figure})"
    return KnowledgeFinding(separation.d_prime, level, words, _few_pairs(domain.name, separation))


def _shift(domain: Figures, general: Figures) -> KnowledgeFinding | None:
    here, there = domain.perplexity, general.perplexity
    if here is None or there is None:
        return None
    shift = here.bits_per_byte / there.bits_per_byte
    level = (shift >= SHIFT[0]) + (shift >= SHIFT[1])
    words = f"it predicts {domain.name} {COMPARED[level]} {general.name} ({shift:.2f} times the bits per byte)"
    counts = ((domain.name, here.texts), (general.name, there.texts))
    few = ", ".join(f"{count} texts of {name}" for name, count in counts if count < MIN_TEXTS)
    return KnowledgeFinding(shift, level, words, few and f"{few}: bits per byte need {MIN_TEXTS} or more")


def _gap(domain: Figures, general: Figures) -> KnowledgeFinding | None:
    here, there = domain.separation, general.separation
    if here is None or there is None or there.d_prime <= 0:
        return None
    gap = 1 - here.d_prime / there.d_prime
    level = (gap >= GAP[0]) + (gap >= GAP[1])
    comparison = "better than" if gap <= -GAP[0] else COMPARED[level]
    doubts = [doubt for doubt in (_few_pairs(domain.name, here), _few_pairs(general.name, there)) if doubt]
    words = f"it tells pairs of {domain.name} apart {comparison} those of {general.name}"
    return KnowledgeFinding(gap, level, words, "; ".join(doubts))


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
