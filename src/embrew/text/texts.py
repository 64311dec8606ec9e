"""Texts, numbers and flags that callers give: brought to one form, checked, prepared as a method asks; no tokenizer."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

SIDES = ("query", "document")
BOOLEANS = ("bool", "bool_")  # of Python and NumPy, which is not imported for them


def check_integer(name: str, value: Any, *, maximum: float = float("inf")) -> int | None:
    """Return a whole number from 1 to `maximum` as an int; None unchanged.

    Raises:
        TypeError: something else than a whole number; True and False too.
        ValueError: out of the range.
    """
    if value is None:
        return None
    if not is_integer(value):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give a whole number")
    number = operator.index(value)
    if not 1 <= number <= maximum:
        allowed = f"choose from 1 to {maximum:.0f}" if maximum != float("inf") else "give 1 or more"
        raise ValueError(f"{name}={number}; {allowed}")
    return number


def check_boolean(name: str, value: Any) -> bool:
    """Return True or False.

    Raises:
        TypeError: something else; a text such as "false" would count as true.
    """
    if type(value).__name__ not in BOOLEANS:
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give True or False")
    return bool(value)


def lengths_of(max_length: int | Mapping[str, int]) -> dict[str, int]:
    """Return the length limits of queries and documents; one number is both.

    Raises:
        TypeError, ValueError: not a whole number from 1, or not just the two sides.
    """
    by_side = max_length if isinstance(max_length, Mapping) else dict.fromkeys(SIDES, max_length)
    if set(by_side) != set(SIDES):
        raise ValueError(f"max_length has {', '.join(by_side) or 'no sides'}; give query and document, or one number")
    limits = {}
    for side in SIDES:
        limit = check_integer("max_length", by_side[side])
        if limit is None:
            raise TypeError(f"max_length={max_length!r}; give a number of tokens for each side")
        limits[side] = limit
    return limits


def is_integer(value: Any) -> bool:
    """Return whether a value is a whole number, of Python or another library; True and False are none."""
    is_number = hasattr(value, "__index__") and type(value).__name__ not in BOOLEANS
    return is_number and not getattr(value, "ndim", 0)


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


def check_text(text: object, index: int) -> None:
    """Refuse what cannot be tokenised: anything but a string, and strings that are not valid Unicode.

    Raises:
        TypeError: not a string.
        ValueError: a lone surrogate (half of a character, usually from a broken JSON escape).
    """
    if not isinstance(text, str):
        raise TypeError(f"text {index} is {type(text).__name__}; texts are strings")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text {index} holds a lone surrogate ({text[error.start]!r} at character {error.start}), which is not "
            "valid Unicode; repair it, for instance with text.encode('utf-8', 'replace').decode()"
        ) from None


Text = str | Sequence[int]
NOT_TEXTS = (bytes, bytearray, memoryview, Mapping, set, frozenset)
HINTS: dict[str, str] = {
    "NoneType": "a missing text; fill it, for instance with '', or leave it out",
    "NAType": "a missing text; fill it, for instance with '', or leave it out",
    "float": "a missing text where it is NaN; texts are strings",
    "bytes": "decode it, for instance with .decode('utf-8')",
    "dict": "give its text",
}


def texts_of(inputs: Any, *, vocabulary: int) -> tuple[list[Text], bool]:
    """Return the texts to encode as a list, and whether a single one was given.

    Args:
        inputs: a string; a list of token ids, as list, tuple or one-dimensional integer array; or several of either:
            a list, tuple, generator or other iterable, a NumPy array, a torch tensor, a pandas or polars Series, a
            column of a data set or an Arrow array.
        vocabulary: number of token ids; ids must be below.

    Raises:
        TypeError: no texts, or something among them that is none; names its position.
        ValueError: an array of more dimensions, or a token id that does not exist.

    Examples:
        >>> texts_of("a text", vocabulary=10)
        (['a text'], True)
        >>> import numpy as np
        >>> texts_of(np.array(["a", "b"]), vocabulary=10)
        (['a', 'b'], False)
        >>> texts_of((text for text in "ab"), vocabulary=10)
        (['a', 'b'], False)
        >>> texts_of([3, 4], vocabulary=10)
        ([[3, 4]], True)
    """
    dimensions = getattr(inputs, "ndim", None)
    if dimensions is not None and hasattr(inputs, "tolist"):  # NumPy, torch, pandas' Series
        if dimensions > 2 or (dimensions == 2 and "int" not in str(inputs.dtype)):
            raise ValueError(f"texts of shape {tuple(inputs.shape)}; give one dimension, such as .ravel() of them")
        inputs = inputs.tolist() if dimensions else _text(inputs.item(), 0, vocabulary)
    elif dimensions is not None:  # a DataFrame, whose iteration gives the names of its columns
        raise TypeError(f"texts are given as {type(inputs).__name__}; give one of its columns")
    for name in ("to_pylist", "to_list"):  # Arrow, polars
        if hasattr(inputs, name):
            inputs = getattr(inputs, name)()
    if isinstance(inputs, str):
        return [str(inputs)], True
    if isinstance(inputs, NOT_TEXTS) or not isinstance(inputs, Iterable):
        kind = type(inputs).__name__
        raise TypeError(f"texts are given as {kind}; give a string or a list of strings" + _hint(kind))
    items = list(inputs)
    if items and is_integer(items[0]):
        return [_token_ids(items, 0, vocabulary)], True
    return [_text(item, index, vocabulary) for index, item in enumerate(items)], False


def _text(item: Any, index: int, vocabulary: int) -> Text:
    if isinstance(item, str):
        return item if type(item) is str else str(item)  # NumPy's own strings
    if isinstance(item, list | tuple) or (getattr(item, "ndim", None) == 1 and "int" in str(item.dtype)):
        return _token_ids(item, index, vocabulary)
    kind = type(item).__name__
    raise TypeError(f"text {index} is {kind}; a text is a string or a list of token ids" + _hint(kind))


def _token_ids(ids: Iterable[Any], index: int, vocabulary: int) -> list[int]:
    numbers = []
    for position, token_id in enumerate(ids.tolist() if hasattr(ids, "tolist") else ids):
        if not is_integer(token_id):
            raise TypeError(
                f"text {index} holds a {type(token_id).__name__} at position {position}; a text is a string or a list "
                "of token ids, which are whole numbers"
            )
        numbers.append(operator.index(token_id))
    if numbers and not 0 <= min(numbers) <= max(numbers) < vocabulary:
        wrong = min(numbers) if min(numbers) < 0 else max(numbers)
        raise ValueError(f"text {index} holds the token id {wrong}; ids are from 0 to {vocabulary - 1}")
    return numbers


def _hint(kind: str) -> str:
    return f" ({HINTS[kind]})" if kind in HINTS else ""


def target_ids(ids: Sequence[int], *, end: Sequence[int], limit: int, complete: bool = True) -> list[int]:
    """Return at most `limit` tokens of a target; its end, an EOS token, only where the target is complete.

    A model trained on EOS after the first half of an answer learns to stop in the middle of a sentence.

    Args:
        ids: token ids of the text.
        end: the tokens that end a text: EOS, or none.
        limit: limit in tokens, the end included.
        complete: False where `ids` are only the beginning of a text.

    >>> target_ids([5, 6], end=[2], limit=3), target_ids([5, 6, 7], end=[2], limit=3)
    ([5, 6, 2], [5, 6, 7])
    """
    is_whole = len(ids) + len(end) <= limit
    return [*ids, *end] if is_whole and complete else list(ids[:limit])
