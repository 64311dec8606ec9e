"""Find repeated ids, with 16 bytes of memory per id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embrew.corpus.lookup import Lookup, keys_of


class Ids:
    """The ids of a corpus, as 127 bits of two hashes; among a billion ids, two collide with probability 10⁻²⁰.

    Args:
        keep: rows with the id of an earlier row are kept; otherwise they are refused or left out.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self._known = Lookup()

    def repeated(self, ids: Sequence[str]) -> list[bool]:
        """Add ids; return which of them were added before, in earlier calls or in this one."""
        keys, checks = keys_of(ids, len(ids)), _checks(ids)
        again = self._known.find(keys) == checks
        if len(set(ids)) < len(ids):
            seen: set[str] = set()
            for i, name in enumerate(ids):
                again[i] |= name in seen
                seen.add(name)
        self._known.add(keys[~again], checks[~again])
        return [bool(repeats) for repeats in again]


def _checks(ids: Sequence[str]) -> np.ndarray:
    """Return a second hash of each id, 0 or more."""
    return (keys_of((f"\0{name}" for name in ids), len(ids)) >> np.uint64(1)).view(np.int64)
