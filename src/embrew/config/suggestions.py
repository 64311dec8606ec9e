"""Parts of error messages: allowed names, and the nearest to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

MOST = 30  # names that a message lists; for more, it gives their number and the nearest


def choose_from(word: str, allowed: Collection[str]) -> str:
    """Return `choose from …` with the nearest name; for many names, their number and the nearest three."""
    if len(allowed) > MOST:
        return f"it is none of the {len(allowed)} names that are allowed{did_you_mean(word, allowed, most=3)}"
    return f"choose from {', '.join(allowed)}{did_you_mean(word, allowed)}"


def did_you_mean(word: str, choices: Collection[str], *, most: int = 1) -> str:
    """Return `"; did you mean 'x'?"` with up to `most` similar choices, or an empty string.

    >>> did_you_mean("llm2comp/nanno", ["epic/nano", "llm2comp/nano", "lbr/ratio"], most=3)
    "; did you mean 'llm2comp/nano' or 'epic/nano'?"
    """
    close = [repr(choice) for choice in difflib.get_close_matches(word, list(choices), n=most, cutoff=0.5)]
    return f"; did you mean {one_of(close)}?" if close else ""


def one_of(words: Sequence[str]) -> str:
    """Return words joined as `a`, `a or b`, `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters, with `…` for the rest.

    >>> shortened("a long title", 6)
    'a lon…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def quoted(text: str, most: int = 300) -> str:
    """Return the text in quotes, truncated to `most` characters.

    >>> quoted("encoder.model=nano", 12)
    "'encoder.m...'"
    """
    return repr(text if len(text) <= most else text[: most - 3] + "...")
