"""What a runtime gave beside what is right, by prompt and text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from embrew.parity.conditions import Key, Measurements
from embrew.parity.faults import Cause, cause_of
from embrew.parity.reference import Reference
from embrew.parity.vectors import Agreement, agreement

MARGIN = 2.0  # a fault is named if its vectors are nearer than those of all others by this factor
CLEAR = 4.0  # the same, against the right vectors where these are within the tolerance
NOISE = 1e-6  # mean distance (1 - cosine) below which vectors are the same
STANDS_OUT = 10.0  # a text is wrong on its own, not just less precise, if it is farther than the median by this factor
TOO_NEAR = 1e-5  # mean distance from which a fault within the tolerance is named


@dataclass
class Compared:
    """Measured vectors, the right ones, and when they are the same.

    Attributes:
        found: the measured vectors.
        reference: the vectors that are right, and those under faults.
        min_cosine: cosine that every text has to reach.
        truncation: measures at how many tokens the runtime truncates texts; None: it cannot be told.
        cut: number of tokens at which the runtime truncates texts, once it is known.
        excused: texts that do not count: the runtime reads names of special tokens in them.
        notes: what else the user should know.
    """

    found: Measurements
    reference: Reference
    min_cosine: float
    truncation: Callable[[], int | None]
    cut: int = field(init=False)
    excused: list[Key] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cut = self.reference.max_length
        self.theirs = self.found.first.vectors
        self.right: dict[Key, np.ndarray] = {}
        self.lengths: dict[Key, int] = {}
        for case in self.reference.cases:
            for text, vector, ids in zip(case.texts, case.vectors, case.ids, strict=True):
                self.right[case.prompt.words, text] = vector
                self.lengths[case.prompt.words, text] = len(ids)
        self.usual = float(np.median([1 - self.agreement([key]).mean for key in self.theirs]))

    def cause(self, faults: str) -> Cause:
        """Return the cause of these faults in words."""
        return cause_of(faults, limit=self.reference.max_length)

    def agreement(self, keys: Sequence[Key]) -> Agreement:
        """Compare the runtime's vectors of texts sent alone with the right ones."""
        return agreement(np.stack([self.theirs[key] for key in keys]), np.stack([self.right[key] for key in keys]))

    def cosines(self, keys: Sequence[Key]) -> str:
        """Return in words how close the vectors of texts are."""
        found = self.agreement(keys)
        return (
            f"lowest cosine {found.lowest:.6f}, mean {found.mean:.6f}, of {len(keys)} texts; every text has to reach "
            f"{self.min_cosine:g}"
        )

    def is_right(self, key: Key, vector: np.ndarray) -> bool:
        """Return whether a vector is the right one of a text.

        One of other token ids has to be as near as those of other texts are, whatever the tolerance allows.
        """
        distance = 1 - agreement(vector[None], self.right[key][None]).lowest
        moved = key in self.found.other_ids and distance > max(TOO_NEAR, STANDS_OUT * self.usual)
        return distance <= 1 - self.min_cosine and not moved

    def same(self, found: Sequence[np.ndarray] | np.ndarray, right: Sequence[np.ndarray] | np.ndarray) -> bool:
        """Return whether vectors are the same, text by text."""
        return agreement(np.stack(list(found)), np.stack(list(right))).reaches(self.min_cosine)
