"""Seeded samples that keep the order of what they are drawn from."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def sample_in_order(items: Sequence[T], count: int | None, *, seed: int) -> list[T]:
    """Return up to `count` items in their order; all of them if `count` is None.

    Examples:
        >>> sample_in_order("abcdef", 3, seed=0)
        ['a', 'd', 'f']
    """
    if count is None or len(items) <= count:
        return list(items)
    return [items[i] for i in sorted(random.Random(seed).sample(range(len(items)), count))]
