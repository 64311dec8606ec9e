"""What callers give to an encoder, brought to one form: texts in any container, whole numbers, length limits."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Text = str | Sequence[int]
SIDES = ("query", "document")
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
        >>> texts_of(np.array(["a", "b"]), vocabulary=10)
        (['a', 'b'], False)
        >>> texts_of((text for text in "ab"), vocabulary=10)
        (['a', 'b'], False)
        >>> texts_of([3, 4], vocabulary=10)
        ([[3, 4]], True)
    """
    if isinstance(inputs, str):
        return [str(inputs)], True
    items = _items(inputs)
    if isinstance(items, str):
        return [items], True
    if items and _is_integer(items[0]):
        return [_token_ids(items, 0, vocabulary)], True
    return [_text(item, place, vocabulary) for place, item in enumerate(items)], False


def whole(name: str, value: Any, *, least: int = 1, most: float = float("inf"), optional: bool = True) -> int | None:
    """Return a whole number in its range as an int; None as it is, where `optional`.

    Raises:
        TypeError: something else than a whole number; True and False too.
        ValueError: out of the range.
    """
    if value is None and optional:
        return None
    if not _is_integer(value):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give a whole number")
    number = operator.index(value)
    if not least <= number <= most:
        allowed = f"choose from {least} to {most:.0f}" if most != float("inf") else f"give {least} or more"
        raise ValueError(f"{name}={number}; {allowed}")
    return number


def flag(name: str, value: Any) -> bool:
    """Return True or False.

    Raises:
        TypeError: something else; a text such as "false" would count as true.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give True or False")
    return bool(value)


def lengths_of(max_length: int | Mapping[str, int]) -> dict[str, int]:
    """Return the length limits of queries and documents; one number is both.

    Raises:
        TypeError, ValueError: not a whole number from 1, or not just the two sides.
    """
    given = max_length if isinstance(max_length, Mapping) else dict.fromkeys(SIDES, max_length)
    if set(given) != set(SIDES):
        raise ValueError(f"max_length has {', '.join(given) or 'no sides'}; give query and document, or one number")
    limits = {}
    for side in SIDES:
        limit = whole("max_length", given[side])
        if limit is None:
            raise TypeError(f"max_length={max_length!r}; give a number of tokens for each side")
        limits[side] = limit
    return limits


def _items(inputs: Any) -> list[Any] | str:
    """The members of a container; a string where an array without dimensions holds one."""
    dimensions = getattr(inputs, "ndim", None)
    if dimensions is not None and hasattr(inputs, "tolist"):  # NumPy, torch, pandas' Series
        if dimensions > 2 or (dimensions == 2 and "int" not in str(inputs.dtype)):
            raise ValueError(f"texts of shape {tuple(inputs.shape)}; give one dimension, such as .ravel() of them")
        if dimensions == 0:
            inputs = [inputs.item()]
            return str(inputs[0]) if isinstance(inputs[0], str) else [_text(inputs[0], 0, 0)]
        inputs = inputs.tolist()
    elif dimensions is not None:  # a DataFrame, whose iteration gives the names of its columns
        raise TypeError(f"texts are given as {type(inputs).__name__}; give one of its columns")
    for name in ("to_pylist", "to_list"):  # Arrow, polars
        if hasattr(inputs, name):
            inputs = getattr(inputs, name)()
    if isinstance(inputs, NOT_TEXTS) or not isinstance(inputs, Iterable):
        kind = type(inputs).__name__
        raise TypeError(f"texts are given as {kind}; give a string or a list of strings" + _hint(kind))
    return list(inputs)


def _text(item: Any, place: int, vocabulary: int) -> Text:
    if isinstance(item, str):
        return item if type(item) is str else str(item)  # NumPy's own strings
    if isinstance(item, list | tuple) or (getattr(item, "ndim", None) == 1 and "int" in str(item.dtype)):
        return _token_ids(item, place, vocabulary)
    kind = type(item).__name__
    raise TypeError(f"text {place} is {kind}; a text is a string or a list of token ids" + _hint(kind))


def _token_ids(ids: Iterable[Any], place: int, vocabulary: int) -> list[int]:
    found = []
    for position, one in enumerate(ids.tolist() if hasattr(ids, "tolist") else ids):
        if not _is_integer(one):
            raise TypeError(
                f"text {place} holds a {type(one).__name__} at position {position}; a text is a string or a list of "
                "token ids, which are whole numbers"
            )
        found.append(operator.index(one))
    if found and not 0 <= min(found) <= max(found) < vocabulary:
        wrong = min(found) if min(found) < 0 else max(found)
        raise ValueError(f"text {place} holds the token id {wrong}; ids are from 0 to {vocabulary - 1}")
    return found


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool | np.bool_) and not getattr(value, "ndim", 0)


def _hint(kind: str) -> str:
    return f" ({HINTS[kind]})" if kind in HINTS else ""
