"""Seeded samples that keep the order of what they are drawn from."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def sample_in_order(items: Sequence[T], most: int | None, *, seed: int) -> list[T]:
    """Return up to `most` items in their order; all of them if `most` is None.

    Examples:
        >>> sample_in_order("abcdef", 3, seed=0)
        ['a', 'd', 'f']
    """
    if most is None or len(items) <= most:
        return list(items)
    return [items[i] for i in sorted(random.Random(seed).sample(range(len(items)), most))]
