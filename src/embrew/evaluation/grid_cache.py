"""Data, generators and vectors that several tasks of one evaluation share."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class GridCache:
    """One value per name, kept until a value for another key is asked for: two corpora's vectors may not fit."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, Any]] = {}

    def get(self, name: str, key: Any, make: Callable[[], T]) -> T:
        """Return the value made for `key`, or make it and drop the previous one of this name."""
        if name not in self._kept or self._kept[name][0] != key:
            self._kept.pop(name, None)
            self._kept[name] = key, make()
        made: T = self._kept[name][1]
        return made
