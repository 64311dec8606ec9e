"""Parts of error messages: allowed names, and the nearest to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

MAX_LISTED = 30  # names that a message lists; for more, it gives their number and the nearest


def choose_from(word: str, allowed: Collection[str]) -> str:
    """Return `choose from …` with the nearest name; for many names, their number and the nearest three."""
    if len(allowed) > MAX_LISTED:
        return f"it is none of the {len(allowed)} names that are allowed{did_you_mean(word, allowed, limit=3)}"
    return f"choose from {', '.join(allowed)}{did_you_mean(word, allowed)}"


def did_you_mean(word: str, choices: Collection[str], *, limit: int = 1) -> str:
    """Return `"; did you mean 'x'?"` with up to `limit` similar choices, or an empty string.

    >>> did_you_mean("llm2comp/nanno", ["epic/nano", "llm2comp/nano", "lbr/ratio"], limit=3)
    "; did you mean 'llm2comp/nano' or 'epic/nano'?"
    """
    close = [repr(choice) for choice in difflib.get_close_matches(word, list(choices), n=limit, cutoff=0.5)]
    return f"; did you mean {join_with_or(close)}?" if close else ""


def join_with_or(words: Sequence[str]) -> str:
    """Return words joined as `a`, `a or b`, `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def shortened(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, with `…` for the rest.

    >>> shortened("a long title", 6)
    'a lon…'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quoted(text: str, limit: int = 300) -> str:
    """Return the text in quotes, truncated to `limit` characters.

    >>> quoted("encoder.model=nano", 12)
    "'encoder.m...'"
    """
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")
