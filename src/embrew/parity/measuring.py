"""Send the reference texts to a runtime: alone, in batches, in another order, with prompts by words and by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from embrew.check_passport import distances
from embrew.parity.expected import Reference, ReferenceText, TextKey
from embrew.passport.texts import CHOSEN
from embrew.runtimes.runtime import OpenedRuntime, Refused

ALONE, LONG, NAMED = "alone", "beyond the limit", "prompt by name"
PAIRS, MIXED, REORDERED = "pairs of equal length", "mixed lengths", "the same, reversed"


@dataclass
class Condition:
    """What a runtime gives under one condition.

    Attributes:
        name: name of the way in which texts were sent.
        texts: texts that got a vector, in the order in which these came.
        vectors: vectors of the runtime.
        refused: message of the runtime where it refuses one of the texts; None: it refuses none.
    """

    name: str
    texts: list[ReferenceText] = field(default_factory=list)
    vectors: list[np.ndarray] = field(default_factory=list)
    refused: str | None = None

    def where(self, condition: Callable[[ReferenceText], bool]) -> Condition:
        """Return the part with some of the texts."""
        pairs = [pair for pair in self.pairs if condition(pair[0])]
        return Condition(self.name, [text for text, _ in pairs], [vector for _, vector in pairs], self.refused)

    def by_prompt(self) -> list[Condition]:
        """Return one part per prompt."""
        prompts = dict.fromkeys(text.prompt.words for text in self.texts)
        return [self.where(lambda text, words=words: text.prompt.words == words) for words in prompts]  # type: ignore[misc]

    @property
    def pairs(self) -> list[tuple[ReferenceText, np.ndarray]]:
        """Texts and vectors."""
        return list(zip(self.texts, self.vectors, strict=True))

    @property
    def measured(self) -> np.ndarray:
        """The runtime's vectors, `(texts, dimensions)`."""
        return np.stack(self.vectors)

    @property
    def expected(self) -> np.ndarray:
        """The reference vectors of the same texts."""
        return np.stack([text.vector for text in self.texts])

    @property
    def distances(self) -> np.ndarray:
        """The distance of both, `(texts,)`."""
        return distances(self.measured, self.expected)


@dataclass
class Measurements:
    """What a runtime gives under all conditions.

    Attributes:
        reference: vectors that are right, and those under faults.
        min_cosine: cosine that every text has to reach.
        conditions: conditions by name, in the order of measurement.
        compared_ids: number of texts whose token ids were compared.
        other_ids: texts whose token ids differ.
    """

    reference: Reference
    min_cosine: float
    conditions: dict[str, Condition] = field(default_factory=dict)
    compared_ids: int = 0
    other_ids: set[TextKey] = field(default_factory=set)

    @property
    def alone(self) -> Condition:
        """Texts alone, with prompts as the runtime takes them."""
        return self.conditions[ALONE]

    def same(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Return whether all vectors are the same: a mean would hide a single wrong one."""
        return bool(distances(a, b).max() <= 1 - self.min_cosine)


def measure_runtime(
    runtime: OpenedRuntime, reference: Reference, *, min_cosine: float, progress: Callable[[int], object]
) -> Measurements:
    """Send the reference texts to a runtime under all conditions; `progress` is called with the number sent.

    Raises:
        ValueError: the runtime gives no vectors; says why.
    """
    measurements = Measurements(reference, min_cosine)
    for name, batches in _batches(runtime, reference).items():
        measurements.conditions[name] = _send(runtime, Condition(name), batches, progress)
        if not measurements.alone.texts:
            raise ValueError(f"{runtime.name} gives no vector for any reference text: {measurements.alone.refused}")
    sizes = sorted({len(vector) for condition in measurements.conditions.values() for vector in condition.vectors})
    if len(sizes) > 1:
        raise ValueError(f"{runtime.name} gives vectors of different dimensions: {', '.join(map(str, sizes))}")
    for text in reference.texts:
        try:
            ids = runtime.token_ids(text.prompt.words + text.text)
        except Refused:
            continue
        if ids is None:
            break
        measurements.compared_ids += 1
        if ids != text.ids:
            measurements.other_ids.add(text.key)
    return measurements


def _send(
    runtime: OpenedRuntime,
    condition: Condition,
    batches: Iterable[Sequence[ReferenceText]],
    progress: Callable[[int], object],
) -> Condition:
    """Fill a condition with the vectors of batches, whose texts have one prompt each."""
    by_name = condition.name == NAMED or not runtime.by_words
    for batch in batches:
        try:
            if by_name:
                vectors = runtime.vectors([text.text for text in batch], batch[0].prompt)
            else:
                vectors = runtime.vectors([text.prompt.words + text.text for text in batch])
            condition.texts += batch
            condition.vectors += list(vectors)
        except Refused as error:
            condition.refused = str(error)
        progress(len(batch))
    return condition


def _batches(runtime: OpenedRuntime, reference: Reference) -> dict[str, list[list[ReferenceText]]]:
    """Return the texts of each request, by condition; those beyond the limit and empty ones are in no larger batch."""
    unique = list({text.key: text for text in reversed(reference.texts)}.values())[::-1]
    short = [text for text in unique if len(text.ids) < reference.max_length]
    long = [text for text in unique if len(text.ids) >= reference.max_length]
    if not runtime.by_words:
        long = [text for text in long if not text.prompt.is_context]
    batches = {ALONE: [[text] for text in short], LONG: [[text] for text in long]}
    if runtime.by_words and runtime.by_name:
        named = [text for text in reference.texts if text.prompt.name is not None and text.text in CHOSEN]
        batches[NAMED] = [[text] for text in named if len(text.ids) < reference.max_length]
    same_prompt = [text for text in short if text.prompt.words == short[0].prompt.words]
    by_length = sorted((text for text in same_prompt if text.text), key=lambda text: (len(text.ids), text.text))
    half = len(by_length) // 2
    mixed = [text for pair in zip_longest(by_length[half:][::-1], by_length[:half]) for text in pair if text]
    pairs = [[_as_long(text, same_prompt), text] for text in same_prompt if text.text in CHOSEN]
    return {**batches, PAIRS: pairs, MIXED: [mixed], REORDERED: [mixed[::-1]]}


def _as_long(text: ReferenceText, others: Sequence[ReferenceText]) -> ReferenceText:
    """Return another text with as many tokens; the text itself where there is none."""
    return next((other for other in others if other is not text and len(other.ids) == len(text.ids)), text)
