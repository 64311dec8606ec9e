"""Remove the letters and numbers of listed choices: `A.`, `(b)`, `3)`."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARKER = re.compile(
    r"\s*(?:[(\[](?P<inside>[A-Za-z]|\d{1,2})[)\]]\s*|(?P<letter>[A-Za-z])(?:[.):]\s*|\s+[-–—]\s+)"
    r"|(?P<number>\d{1,2})[.)](?!\d)\s*)(?=\S)"
)


def without_markers(texts: Sequence[str], *, ordered: bool = True) -> list[str]:
    """Return texts without their markers if all begin with one and these are consecutive; otherwise unchanged.

    Markers count from A, a, 0 or 1, so that names such as `E. coli` and figures such as `1.5 mg` are not changed.

    Args:
        texts: all choices of a question.
        ordered: whether the markers must be in order.

    Examples:
        >>> without_markers(["A. Heparin", "B. Lithium"])
        ['Heparin', 'Lithium']
        >>> without_markers(["E. coli", "S. aureus"])
        ['E. coli', 'S. aureus']
    """
    found = [_MARKER.match(text) for text in texts]
    matches = [match for match in found if match]
    if len(texts) < 2 or len(matches) < len(texts):
        return list(texts)
    markers = [str(match["inside"] or match["letter"] or match["number"]) for match in matches]
    places = [int(marker) if marker.isdecimal() else ord(marker) for marker in markers]
    if not ordered:
        places.sort()
    if places[0] not in (0, 1, ord("A"), ord("a")) or places != list(range(places[0], places[0] + len(places))):
        return list(texts)
    return [text[match.end() :].strip() for text, match in zip(texts, matches, strict=True)]
