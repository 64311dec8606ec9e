"""Find numbers by 64-bit keys, for more rows than a dictionary could hold."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class Lookup:
    """Numbers by key, in sorted arrays: 16 bytes per key, where a dictionary of strings takes over 100.

    Arrays are merged as they grow, so that there are few of them, and adding n keys costs n log n steps in all.

    Examples:
        >>> lookup = Lookup()
        >>> lookup.add(np.array([7, 5], dtype=np.uint64), np.array([70, 50]))
        >>> lookup.find(np.array([5, 6], dtype=np.uint64)).tolist()
        [50, -1]
    """

    def __init__(self) -> None:
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []

    def __len__(self) -> int:
        return sum(len(keys) for keys, _ in self._runs)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the number of every key; -1 for unknown keys."""
        found = np.full(len(keys), -1, dtype=np.int64)
        for known, numbers in self._runs:
            at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            hits = known[at] == keys
            found[hits] = numbers[at[hits]]
        return found

    def add(self, keys: np.ndarray, numbers: np.ndarray) -> None:
        """Add keys (uint64) with their numbers (int64, 0 or more); of equal keys, the first one stays."""
        keys, first = np.unique(keys, return_index=True)
        new = self.find(keys) < 0
        keys, numbers = keys[new], np.asarray(numbers, dtype=np.int64)[first[new]]
        if not len(keys):
            return
        while self._runs and len(self._runs[-1][0]) <= 2 * len(keys):
            more, their = self._runs.pop()
            keys, numbers = np.concatenate([more, keys]), np.concatenate([their, numbers])
            order = np.argsort(keys, kind="stable")  # merges two sorted runs in one pass
            keys, numbers = keys[order], numbers[order]
        self._runs.append((keys, numbers))


def keys_of(texts: Iterable[str], count: int) -> np.ndarray:
    """Return 64-bit keys (uint64) of `count` texts, the same only within this process."""
    return np.fromiter((hash(text) for text in texts), dtype=np.int64, count=count).view(np.uint64)
