"""From measured vectors to a verdict: equal, or different and why.

A cause is named only if its vectors are those that were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embrew.check_passport import (
    ALIKE,
    CLEAR,
    FEW,
    NOISE,
    STANDS_OUT,
    TOO_NEAR,
    nearest_faults,
    nearest_truncation,
    shape_faults,
    words_of,
)
from embrew.parity.expected import TextKey
from embrew.parity.measuring import ALONE, MIXED, NAMED, PAIRS, REORDERED, Condition, Measurements, distances
from embrew.passport.texts import CHOSEN, SPECIAL


@dataclass(frozen=True)
class Cause:
    """A cause of a difference.

    Attributes:
        faults: names of faults that come together.
        words: description of what is wrong.
    """

    faults: list[str]
    words: str


@dataclass(frozen=True)
class Verdict:
    """What measured vectors say.

    Attributes:
        equal: whether the runtime gives the reference vectors.
        verdict: verdict in words.
        causes: causes of the difference.
        ambiguous: whether several causes give the same vectors, so that they exclude each other.
        notes: further facts for the user.
    """

    equal: bool
    verdict: str
    causes: list[Cause]
    ambiguous: bool
    notes: list[str]


def verdict_of(measurements: Measurements) -> Verdict:
    """Return the verdict on measured vectors."""
    special = _read_as_tokens(measurements)
    conditions = [
        condition.where(lambda text: text.key not in special) for condition in measurements.conditions.values()
    ]
    alone, long = conditions[:2]
    every = Condition(ALONE, alone.texts + long.texts, alone.vectors + long.vectors)
    notes = [
        f"refused ({name}): {condition.refused}"
        for name, condition in measurements.conditions.items()
        if condition.refused and name != ALONE
    ]
    if special:
        notes.append(
            "a text with names of special tokens gets another vector: the runtime reads such names, for example "
            "</s>, as tokens; remove them from texts before they get there"
        )
    directions = _of_directions(measurements)
    faults = [] if isinstance(directions, str) else directions
    causes = [*faults]
    if not faults:
        causes += _of_truncation(measurements, every) or _of_texts(measurements, every)
    if not isinstance(directions, str):
        causes += [*_of_shape(measurements, faults), *_of_names(measurements), *_of_batches(measurements)]
    reached = all(measurements.same(part.measured, part.expected) for part in conditions if part.texts)
    is_unknown = not causes and not reached
    if measurements.alone.refused:
        causes.append(Cause(["refused"], f"texts within the limit are refused: {measurements.alone.refused}"))
    words = [cause.words for cause in causes]
    if len(faults) > 1:
        words = [f"ambiguous: {' or '.join(words[: len(faults)])}", *words[len(faults) :]]
    if is_unknown:
        words = [directions if isinstance(directions, str) else _unknown(measurements, every, nearest_is_right=True)]
    verdict = f"different: {'; '.join(words)}" if words else f"equal: {_cosines(measurements, every)}"
    return Verdict(not words, verdict, causes, len(faults) > 1, notes)


def _read_as_tokens(measurements: Measurements) -> set[TextKey]:
    """Return the texts with names of special tokens if they alone are wrong, and may have other token ids."""
    wrong = _wrong(measurements, measurements.alone)
    may_be_read = not measurements.compared_ids or wrong <= measurements.other_ids
    return wrong if {text for _, text in wrong} == {SPECIAL} and may_be_read else set()


def _wrong(measurements: Measurements, condition: Condition) -> set[TextKey]:
    """Return the texts whose vectors are wrong.

    One of other token ids has to be as near as those of other texts are, whatever the tolerance allows.
    """
    allowed = max(TOO_NEAR, STANDS_OUT * float(np.median(measurements.alone.distances)))
    return {
        text.key
        for text, distance in zip(condition.texts, condition.distances, strict=True)
        if distance > 1 - measurements.min_cosine or (text.key in measurements.other_ids and distance > allowed)
    }


def _cosines(measurements: Measurements, condition: Condition) -> str:
    cosines = 1 - condition.distances
    return (
        f"lowest cosine {cosines.min():.6f}, mean {cosines.mean():.6f}, of {len(cosines)} texts; every text has to "
        f"reach {measurements.min_cosine:g}"
    )


def _of_directions(measurements: Measurements) -> list[Cause] | str:
    """Return the faults whose vectors plain texts have; a sentence where they are neither right nor of a fault."""
    alone, wrong = measurements.alone, measurements.reference.wrong
    index_of = {key: index for index, key in enumerate(wrong.rows)}
    stored = alone.where(lambda text: text.key in index_of)
    condition = stored if stored.texts else alone.where(lambda text: text.text in CHOSEN)
    rows = [index_of[text.key] for text in stored.texts]
    faults = {name: vectors[rows] for name, vectors in wrong.vectors.items()} if rows else {}
    candidates = {"": condition.expected, **faults}  # "": right
    named = nearest_faults(condition.measured, candidates, 1 - measurements.min_cosine)
    if named is None:
        nearest = min(candidates, key=lambda name: float(distances(condition.measured, candidates[name]).mean()))
        return _unknown(measurements, condition, nearest_is_right=not nearest)
    limit = measurements.reference.max_length
    return [Cause(fault.split("+"), words_of(fault, limit)) for fault in named]


def _unknown(measurements: Measurements, condition: Condition, *, nearest_is_right: bool) -> str:
    """Return in words what vectors are that are neither right nor those of a fault."""
    cosines = _cosines(measurements, condition)
    if nearest_is_right and condition.distances.mean() <= 1 - ALIKE:
        return (
            f"no known fault gives these vectors, and they are nearest to the right ones ({cosines}): weights or "
            "arithmetic of lower precision, or a small change; --min-cosine accepts a lower cosine"
        )
    sizes = condition.measured.shape[1], condition.expected.shape[1]
    what = "or other weights:" if sizes[0] == sizes[1] else f"of {sizes[0]} dimensions instead of {sizes[1]}:"
    return f"another model, {what} no known fault gives these vectors ({cosines})"


def _of_truncation(measurements: Measurements, every: Condition) -> list[Cause]:
    """Return a cause if long texts have vectors of other lengths, or those that are shorter than some length are right.

    A stored vector under a fault is named if the right one is clearly farther.
    """
    stored, limit = measurements.reference.wrong, measurements.reference.max_length
    row = every.where(lambda text: text.key == stored.long)
    if row.texts and stored.truncated:
        right, tolerance = row.expected[0], 1 - measurements.min_cosine
        nearest = nearest_truncation(row.vectors[0], right, stored.truncated, tolerance)
        if nearest is not None:
            return [Cause([nearest], words_of(nearest, limit))]
    wrong = _wrong(measurements, every)
    shortest = min((len(text.ids) for text in every.texts if text.key in wrong), default=0)
    shorter = [text for text in every.texts if len(text.ids) < shortest]
    cut = [text for text in every.texts if len(text.ids) >= shortest and text.key in wrong | measurements.other_ids]
    if len(shorter) < FEW or len(shorter) + len(cut) < len(every.texts):
        return []
    longest = max(len(text.ids) for text in shorter)
    words = (
        f"texts of {shortest} tokens and more differ, those of {longest} and fewer do not: long texts are truncated "
        f"elsewhere than at {limit} tokens, or lose their end"
    )
    return [Cause(["truncated"], words)]


def _of_texts(measurements: Measurements, every: Condition) -> list[Cause]:
    """Return a cause if at most half of the texts have other vectors, much farther away than the others."""
    keys, other_ids = _wrong(measurements, every), measurements.other_ids
    wrong = every.where(lambda text: text.key in keys)
    if not keys or 2 * len(keys) > len(every.texts):
        return []
    if wrong.distances.min() <= max(STANDS_OUT * float(np.median(measurements.alone.distances)), NOISE):
        return []
    prompts = list(dict.fromkeys(text.prompt.words for text in wrong.texts))
    with_them = every.where(lambda text: text.prompt.words in prompts)
    if len(with_them.texts) == len(keys) > 1:
        which = " and ".join(f"the prompt {words!r}" if words else "no prompt" for words in prompts)
        return [Cause(["texts"], f"all texts with {which} differ, others do not")]
    first = wrong.texts[0]
    what = "has the same token ids and another vector" if measurements.compared_ids else "has another vector"
    what = "has other token ids" if first.key in other_ids else what
    words = (
        f"{len(keys)} of {len(every.texts)} texts {'differs' if len(keys) == 1 else 'differ'}, others do not (lowest "
        f"cosine {1 - wrong.distances.max():.6f}): the first, {first.text[:40]!r}, {what}"
    )
    return [Cause(["texts"], words)]


def _of_shape(measurements: Measurements, faults: Sequence[Cause]) -> list[Cause]:
    """Return causes by dimensions and lengths of vectors; the latter, under a fault, only if they should be 1."""
    conditions = [condition for condition in measurements.conditions.values() if condition.texts]
    measured = np.concatenate([condition.measured for condition in conditions])
    expected = np.concatenate([condition.expected for condition in conditions])
    faults_of_shape = shape_faults(measured, expected, 1 - measurements.min_cosine, named=bool(faults))
    return [Cause([fault], words) for fault, words in faults_of_shape]


def _beside_alone(measurements: Measurements, condition: Condition) -> tuple[Condition, np.ndarray, bool]:
    """Return the texts of a condition that were measured alone, too; these vectors; and whether they differ.

    They do if arithmetic that is as precise as that of the texts alone does not explain it.
    """
    by_key = {text.key: vector for text, vector in measurements.alone.pairs}
    condition = condition.where(lambda text: text.key in by_key)
    if not condition.texts:
        return condition, np.empty((0, 0)), False
    vectors = np.stack([by_key[text.key] for text in condition.texts])
    usual = distances(vectors, condition.expected).max()
    allowed = max(TOO_NEAR, min(CLEAR * usual, 2 * (1 - measurements.min_cosine)))
    return condition, vectors, bool(distances(condition.measured, vectors).max() > allowed)


def _of_names(measurements: Measurements) -> list[Cause]:
    """Return a cause by prompts of the runtime, where prompts as words are right or have another fault."""
    condition = measurements.conditions.get(NAMED, Condition(NAMED))
    bare = {text.text: vector for text, vector in measurements.alone.pairs if not text.prompt.words}
    for part in condition.by_prompt():
        named, _, differs = _beside_alone(measurements, part)
        if differs:
            name = named.texts[0].prompt.name
            without = [bare[text.text] for text in named.texts if text.text in bare]
            if len(without) == len(named.texts) and measurements.same(named.measured, np.stack(without)):
                words = f"the prompt {name!r} is missing where it is given by name"
                return [Cause(["prompt_missing"], words)]
            return [Cause(["prompt_other"], f"the runtime has another prompt by the name {name!r}")]
    return []


def _of_batches(measurements: Measurements) -> list[Cause]:
    """Return a cause if vectors depend on the other texts of a request."""
    changed = []
    for name in (PAIRS, MIXED, REORDERED):
        batch, alone, differs = _beside_alone(measurements, measurements.conditions.get(name, Condition(name)))
        if differs:
            similarity = batch.measured @ (alone / np.maximum(np.linalg.norm(alone, axis=1), 1e-30)[:, None]).T
            order = similarity.argmax(1)
            if sorted(order) == list(range(len(order))) and measurements.same(batch.measured, alone[order]):
                return [Cause(["order"], "vectors come in another order than the texts of a request")]
            changed.append(name)
    words = f"vectors depend on the other texts of a request: in {' and '.join(changed)}"
    return [Cause(["batch"], words)] if changed else []
