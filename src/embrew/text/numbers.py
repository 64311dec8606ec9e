"""Whole numbers, flags and length limits that callers give, checked."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

SIDES = ("query", "document")
BOOLEANS = ("bool", "bool_")  # of Python and NumPy, which is not imported for them


def whole(name: str, value: Any, *, least: int = 1, most: float = float("inf"), optional: bool = True) -> int | None:
    """Return a whole number in its range as an int; None unchanged if `optional`.

    Raises:
        TypeError: something else than a whole number; True and False too.
        ValueError: out of the range.
    """
    if value is None and optional:
        return None
    if not is_integer(value):
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
    if type(value).__name__ not in BOOLEANS:
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


def is_integer(value: Any) -> bool:
    """Return whether a value is a whole number, of Python or another library; True and False are none."""
    is_number = hasattr(value, "__index__") and type(value).__name__ not in BOOLEANS
    return is_number and not getattr(value, "ndim", 0)
