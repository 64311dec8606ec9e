"""Names that are not known, and the nearest that are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def check_known(given: Iterable[str], allowed: Sequence[str], where: str) -> None:
    """Raise ValueError at the first key that is not allowed."""
    for key in given:
        if key not in allowed:
            raise ValueError(f"{where} has no key {key!r}{nearest(key, allowed)}; it has {', '.join(allowed)}")


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The words `(did you mean …?)`, or none."""
    found = difflib.get_close_matches(name, list(allowed), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
