"""Causes by the directions of vectors: those of known faults are compared with the runtime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embrew.parity.compared import CLEAR, MARGIN, NOISE, TOO_NEAR, Compared
from embrew.parity.conditions import Key
from embrew.parity.faults import Cause
from embrew.parity.vectors import agreement

ALIKE = 0.97  # mean cosine from which vectors that no fault explains can be those of less precise weights


@dataclass(frozen=True)
class Directions:
    """What the directions of plain texts' vectors say.

    Attributes:
        causes: faults whose vectors they are; none: they are right, or unknown.
        alternatives: whether the causes exclude each other.
        unknown: they are neither right nor those of a fault.
        nearest_is_right: unknown vectors are nearest to the right ones.
    """

    causes: tuple[Cause, ...] = ()
    alternatives: bool = False
    unknown: bool = False
    nearest_is_right: bool = False


def directions(compared: Compared, keys: Sequence[Key]) -> Directions:
    """Return what the vectors of texts say. A fault is named only if its vectors are those that were measured."""
    candidates, keys = _candidates(compared, keys)
    theirs = np.stack([compared.theirs[key] for key in keys])
    close = {name: agreement(theirs, np.stack([each[key] for key in keys])) for name, each in candidates.items()}
    distance = {name: 1 - each.mean for name, each in close.items()}
    accepted = {name for name, each in close.items() if each.reaches(compared.min_cosine)}
    best = min(distance.values())
    near = {name for name in candidates if distance[name] <= max(MARGIN * best, best + NOISE)}
    named = near & accepted - {""}
    if "" in accepted and ("" in near or not named or distance[""] < max(TOO_NEAR, best * CLEAR)):
        return Directions()
    if "" in near or not named:
        return Directions(unknown=True, nearest_is_right="" in near)
    fewest = min(name.count("+") for name in named)
    causes = [compared.cause(name) for name in candidates if name in named and name.count("+") == fewest]
    return Directions(tuple(causes), len(causes) > 1)


def _candidates(compared: Compared, keys: Sequence[Key]) -> tuple[dict[str, Mapping[Key, np.ndarray]], list[Key]]:
    """Return vectors by faults, and the texts for which all are known; the right ones are named ""."""
    wrong, right = compared.reference.wrong, compared.right
    found: dict[str, Mapping[Key, np.ndarray]] = {"": right}
    kept = [key for key in wrong.rows if key in compared.theirs]
    if kept:
        for name, vectors in wrong.vectors.items():
            found[name] = dict(zip(wrong.rows, vectors, strict=True))
        return found, kept
    without = {key: right["", key[1]] for key in keys if ("", key[1]) in right}
    if len(without) == len(keys) and any(prompt for prompt, _ in keys):
        found["prompt_missing"] = without
    return found, list(keys)


def of_unknown(compared: Compared, keys: Sequence[Key], *, nearest_is_right: bool) -> str:
    """Return in words what vectors are that are neither right nor those of a fault."""
    measured, mean, reference = compared.cosines(keys), compared.agreement(keys).mean, compared.reference
    if nearest_is_right and mean >= ALIKE:
        return (
            f"different: no known fault gives these vectors, and they are nearest to the right ones ({measured}): "
            "weights or arithmetic of lower precision, or a small change; --min-cosine accepts a lower cosine"
        )
    dimensions = len(next(iter(compared.theirs.values())))
    if dimensions != reference.dimensions:
        what = f"{dimensions} dimensions instead of {reference.dimensions}"
        return f"different: another model: {what}, and no known fault gives these vectors ({measured})"
    return f"different: another model, or other weights: no known fault gives these vectors ({measured})"
