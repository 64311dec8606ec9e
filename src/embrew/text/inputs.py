"""Texts that callers give to an encoder, in any container, brought to one form."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from embrew.text.numbers import is_integer

Text = str | Sequence[int]
NOT_TEXTS = (bytes, bytearray, memoryview, Mapping, set, frozenset)
HINTS: dict[str, str] = {
    "NoneType": "a missing text; fill it, for instance with '', or leave it out",
    "NAType": "a missing text; fill it, for instance with '', or leave it out",
    "float": "a missing text where it is NaN; texts are strings",
    "bytes": "decode it, for instance with .decode('utf-8')",
    "dict": "give its text",
}


def texts_of(inputs: Any, *, vocabulary: int, first: int = 0) -> tuple[list[Text], bool]:
    """Return the texts to encode as a list, and whether a single one was given.

    Args:
        inputs: a string; a list of token ids, as list, tuple or one-dimensional integer array; or several of either:
            a list, tuple, generator or other iterable, a NumPy array, a torch tensor, a pandas or polars Series, a
            column of a data set or an Arrow array.
        vocabulary: number of token ids; ids must be below.
        first: number of the first text, for error messages.

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
    if isinstance(inputs, str):
        return [str(inputs)], True
    items = _items(inputs)
    if isinstance(items, str):
        return [items], True
    if items and is_integer(items[0]):
        return [_token_ids(items, 0, vocabulary)], True
    return [_text(item, place, vocabulary) for place, item in enumerate(items, first)], False


def _items(inputs: Any) -> list[Any] | str:
    """Return the members of a container; a string where an array without dimensions holds one."""
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
        if not is_integer(one):
            raise TypeError(
                f"text {place} holds a {type(one).__name__} at position {position}; a text is a string or a list of "
                "token ids, which are whole numbers"
            )
        found.append(operator.index(one))
    if found and not 0 <= min(found) <= max(found) < vocabulary:
        wrong = min(found) if min(found) < 0 else max(found)
        raise ValueError(f"text {place} holds the token id {wrong}; ids are from 0 to {vocabulary - 1}")
    return found


def _hint(kind: str) -> str:
    return f" ({HINTS[kind]})" if kind in HINTS else ""
