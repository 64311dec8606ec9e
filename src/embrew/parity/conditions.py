"""Send the reference texts to a runtime: alone, in batches, in another order, with prompts by words and by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from embrew.export.wrong_vectors import CHOSEN
from embrew.parity.reference import Case, Prompt, Reference
from embrew.parity.runtimes.runtime import Refused, Runtime

Key = tuple[str, str]
"""Prompt and text."""
ALONE, LONG, NAMED = "alone", "beyond the limit", "prompt by name"
PAIRS, MIXED, REORDERED = "pairs of equal length", "mixed lengths", "the same, reversed"
BATCHES = (PAIRS, MIXED, REORDERED)


@dataclass
class Measured:
    """What a runtime gives under one condition.

    Attributes:
        condition: its name.
        rows: prompt and text, and the vector, in the order in which they came.
        refused: the runtime's message where it refuses one of the texts.
    """

    condition: str
    rows: list[tuple[Key, np.ndarray]] = field(default_factory=list)
    refused: str | None = None

    @property
    def vectors(self) -> dict[Key, np.ndarray]:
        """Vectors by prompt and text."""
        return dict(self.rows)


@dataclass
class Measurements:
    """What a runtime gives under all conditions.

    Attributes:
        runtime: its name.
        conditions: by name, in the order of measurement.
        other_ids: token ids of a text, the reference's and the runtime's, where they differ.
        compared_ids: number of texts whose token ids were compared.
    """

    runtime: str
    conditions: dict[str, Measured] = field(default_factory=dict)
    other_ids: dict[Key, tuple[list[int], list[int]]] = field(default_factory=dict)
    compared_ids: int = 0

    @property
    def first(self) -> Measured:
        """Texts alone, with prompts as the runtime takes them."""
        return self.conditions[ALONE]


def measure(runtime: Runtime, reference: Reference, *, progress: Callable[[int], object]) -> Measurements:
    """Send the reference texts to a runtime under all conditions; `progress` is called with the number sent.

    Raises:
        ValueError: the runtime gives no vectors; says why.
    """
    found = Measurements(runtime.name)
    for name, cases, by_name in _single(runtime, reference):
        measured = found.conditions.setdefault(name, Measured(name))
        for case in cases:
            _alone(runtime, case, measured, by_name=by_name, progress=progress)
    if not found.first.rows:
        raise ValueError(f"{runtime.name} gives no vector for any reference text: {found.first.refused}")
    for name, batches in _batches(reference).items():
        found.conditions[name] = _together(runtime, name, batches, set(found.first.vectors), progress)
    sizes = sorted({len(vector) for condition in found.conditions.values() for _, vector in condition.rows})
    if len(sizes) > 1:
        raise ValueError(f"{runtime.name} gives vectors of different dimensions: {', '.join(map(str, sizes))}")
    for case in reference.cases:
        _compare_ids(runtime, case, found)
    return found


def _single(runtime: Runtime, reference: Reference) -> list[tuple[str, list[Case], bool]]:
    """Return the conditions of single texts: their name, the texts, whether prompts are named."""
    short = [_some(case, lambda ids: len(ids) < reference.max_length) for case in _distinct(reference.cases)]
    long = [_some(case, lambda ids: len(ids) >= reference.max_length) for case in _distinct(reference.cases)]
    every = [_some(case, lambda ids: len(ids) < reference.max_length) for case in reference.cases]
    named = [_chosen(case) for case in every if case.prompt.name is not None]
    if not runtime.by_words:
        return [(ALONE, short, True), (LONG, [case for case in long if not case.prompt.is_context], True)]
    return [(ALONE, short, False), (LONG, long, False), *([(NAMED, named, True)] if runtime.by_name else [])]


def _distinct(cases: Sequence[Case]) -> list[Case]:
    """Return the first case of each prompt."""
    return list({case.prompt.words: case for case in reversed(cases)}.values())[::-1]


def _some(case: Case, wanted: Callable[[list[int]], bool]) -> Case:
    kept = [i for i, ids in enumerate(case.ids) if wanted(ids)]
    return Case(case.prompt, [case.texts[i] for i in kept], [case.ids[i] for i in kept], case.vectors[kept])


def _chosen(case: Case) -> Case:
    kept = [i for i, text in enumerate(case.texts) if text in CHOSEN]
    return Case(case.prompt, [case.texts[i] for i in kept], [case.ids[i] for i in kept], case.vectors[kept])


def _alone(
    runtime: Runtime, case: Case, measured: Measured, *, by_name: bool, progress: Callable[[int], object]
) -> None:
    for text in case.texts:
        try:
            if by_name:
                vectors = runtime.embed_named([text], case.prompt)
            else:
                vectors = runtime.embed([case.prompt.words + text])
            measured.rows.append(((case.prompt.words, text), vectors[0]))
        except Refused as error:
            measured.refused = str(error)
        progress(1)


def _together(
    runtime: Runtime,
    name: str,
    batches: Sequence[tuple[Prompt, list[str]]],
    known: Set[Key],
    progress: Callable[[int], object],
) -> Measured:
    """Return the vectors of texts in batches; those of texts that were not measured alone are left out."""
    measured = Measured(name)
    for prompt, texts in batches:
        try:
            if runtime.by_words:
                vectors = runtime.embed([prompt.words + text for text in texts])
            else:
                vectors = runtime.embed_named(texts, prompt)
        except Refused as error:
            measured.refused = str(error)
            continue
        rows = zip([(prompt.words, text) for text in texts], vectors, strict=True)
        measured.rows += [(key, vector) for key, vector in rows if key in known]
        progress(len(texts))
    return measured


def _batches(reference: Reference) -> dict[str, list[tuple[Prompt, list[str]]]]:
    """Return the texts of each request, by condition; those beyond the limit and empty ones are left out."""
    case = _some(_distinct(reference.cases)[0], lambda ids: len(ids) < reference.max_length)
    by_length = [text for _, text in sorted(zip(map(len, case.ids), case.texts, strict=True)) if text]
    half = len(by_length) // 2
    texts = [text for pair in zip_longest(by_length[half:][::-1], by_length[:half]) for text in pair if text]
    pairs = [(case.prompt, [_as_long(reference, case, text), text]) for text in case.texts if text in CHOSEN]
    return {PAIRS: pairs, MIXED: [(case.prompt, texts)], REORDERED: [(case.prompt, texts[::-1])]}


def _as_long(reference: Reference, case: Case, text: str) -> str:
    """Return another text with as many tokens; the text itself where none is found."""
    lengths = dict(zip(case.texts, map(len, case.ids), strict=True))
    for other in case.texts:
        if other != text and lengths[other] == lengths[text]:
            return other
    if reference.tokenizer is None:
        return text
    from tokenizers import Tokenizer

    tokenizer, words = Tokenizer.from_file(str(reference.tokenizer)), reference.wrong.long[1].split(" ")
    spans = (" ".join(words[start : start + count]) for start in range(5) for count in range(1, lengths[text] + 1))
    wanted = (span for span in spans if len(tokenizer.encode(case.prompt.words + span).ids) == lengths[text])
    return next(wanted, text)


def _compare_ids(runtime: Runtime, case: Case, found: Measurements) -> None:
    for text, ids in zip(case.texts, case.ids, strict=True):
        key = case.prompt.words, text
        theirs = runtime.token_ids(case.prompt.words + text)
        if theirs is None:
            return
        found.compared_ids += 1
        if theirs != ids:
            found.other_ids[key] = ids, theirs
