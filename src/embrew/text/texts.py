"""Check a user's text before it is tokenised, and change it as a method asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Preparation = Literal["none", "sentence"]


def as_sentence(text: str) -> str:
    """Return a text as PromptEOL quotes it: it ends with a full stop and holds no double quotes.

    The preparation of *Scaling Sentence Embeddings with Large Language Models* (arXiv 2307.16645), in the authors'
    code and in those that follow it.

    >>> as_sentence('Is "this" it?')
    "Is 'this' it."
    """
    if text and text[-1] not in ".?\"'":
        text += "."
    text = text.replace('"', "'")
    return text[:-1] + "." if text.endswith("?") else text


PREPARATIONS: dict[str, Callable[[str], str]] = {"none": str, "sentence": as_sentence}


def check_text(text: object, place: int) -> None:
    """Refuse what cannot be tokenised: anything but a string, and strings that are not valid Unicode.

    Raises:
        TypeError: not a string.
        ValueError: a lone surrogate (half of a character, usually from a broken JSON escape).
    """
    if not isinstance(text, str):
        raise TypeError(f"text {place} is {type(text).__name__}; texts are strings")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text {place} holds a lone surrogate ({text[error.start]!r} at character {error.start}), which is not "
            "valid Unicode; repair it, for instance with text.encode('utf-8', 'replace').decode()"
        ) from None
