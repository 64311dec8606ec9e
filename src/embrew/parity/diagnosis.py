"""From measured vectors to a verdict: equal, or different and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from embrew.export.wrong_vectors import CHOSEN
from embrew.parity.compared import Compared
from embrew.parity.conditions import Measurements
from embrew.parity.directions import directions, of_unknown
from embrew.parity.faults import Cause
from embrew.parity.reference import Reference
from embrew.parity.requests import of_batches, of_names
from embrew.parity.texts import of_length, of_refusals, of_short_texts, of_texts
from embrew.parity.vectors import norms

LENGTH = 0.01  # largest relative difference of the lengths of vectors


@dataclass(frozen=True)
class Verdict:
    """What a comparison found.

    Attributes:
        equal: whether the runtime gives the reference vectors.
        sentence: in words.
        causes: of the difference, by what was measured; alternatives that cannot be told apart are one entry each in
            `alternatives`.
        alternatives: whether the causes exclude each other.
        notes: what else the user should know.
    """

    equal: bool
    sentence: str
    causes: tuple[Cause, ...] = ()
    alternatives: bool = False
    notes: tuple[str, ...] = ()


def diagnose(
    found: Measurements, reference: Reference, *, min_cosine: float, truncation: Callable[[], int | None]
) -> Verdict:
    """Return the verdict on measured vectors. A cause is named only if its vectors are those that were measured.

    Args:
        found: the measured vectors.
        reference: the vectors that are right, and those under faults.
        min_cosine: cosine that the vector of every text has to reach.
        truncation: measures at how many tokens the runtime truncates texts; None: it cannot be told.
    """
    compared = Compared(found, reference, min_cosine, truncation)
    keys = [key for key in compared.theirs if key[1] in CHOSEN]
    seen = directions(compared, keys)
    refusals = of_refusals(compared)
    if seen.unknown:
        single = [*of_short_texts(compared), *of_texts(compared)][:1]
        if not single:
            words = of_unknown(compared, keys, nearest_is_right=seen.nearest_is_right)
            return Verdict(False, words, tuple(refusals), notes=tuple(compared.notes))
        return _different(compared, (*single, *refusals))
    more = [*_of_shape(compared, explained=not seen.causes), *of_names(compared), *of_batches(compared), *refusals]
    if not seen.causes:
        more += [*of_length(compared), *of_texts(compared)]
    if seen.causes or more:
        return _different(compared, (*seen.causes, *more), alternatives=seen.causes if seen.alternatives else ())
    plain = [key for key in compared.theirs if key not in compared.excused]
    if not compared.agreement(plain).reaches(min_cosine):  # not clearly single texts
        return Verdict(False, of_unknown(compared, plain, nearest_is_right=True), notes=tuple(compared.notes))
    return Verdict(True, f"equal: {compared.cosines(plain)}", notes=tuple(compared.notes))


def _different(compared: Compared, causes: tuple[Cause, ...], alternatives: tuple[Cause, ...] = ()) -> Verdict:
    """Return the verdict with causes; `alternatives` are the first of them, and exclude each other."""
    either = [f"ambiguous: {' or '.join(cause.words for cause in alternatives)}"] if alternatives else []
    sentence = "; ".join([*either, *(cause.words for cause in causes[len(alternatives) :])])
    return Verdict(False, f"different: {sentence}", causes, bool(alternatives), tuple(compared.notes))


def _of_shape(compared: Compared, *, explained: bool) -> list[Cause]:
    """Return causes by the number of dimensions and the lengths of vectors; `explained`: directions are right."""
    causes, rows = [], [row for condition in compared.found.conditions.values() for row in condition.rows]
    theirs, right = np.stack([vector for _, vector in rows]), np.stack([compared.right[key] for key, _ in rows])
    if theirs.shape[1] != right.shape[1]:
        causes.append(Cause("dimensions", f"{theirs.shape[1]} dimensions instead of {right.shape[1]}"))
    lengths, expected = norms(theirs), norms(right)
    normalised = bool((np.abs(expected[expected > 0] - 1) < LENGTH).all())
    allowed = max(LENGTH, (2 * (1 - compared.min_cosine)) ** 0.5)  # noise as large as the cosine allows sideways
    other = np.abs(lengths - expected) > allowed * expected
    if other.any() and (normalised or explained):
        which = "" if other.mean() > 0.5 else f"{other.sum()} of {len(other)} "
        what = f"{which}vectors are not normalised" if normalised else f"{which}vectors have other lengths"
        wanted = "1" if normalised else f"{expected[other].min():.3g} to {expected[other].max():.3g}"
        spread = f"lengths {lengths[other].min():.3g} to {lengths[other].max():.3g}"
        causes.append(Cause("norm", f"{what} ({spread} instead of {wanted})"))
    return causes
