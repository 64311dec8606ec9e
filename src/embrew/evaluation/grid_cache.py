"""Data, generators and vectors that several tasks of one evaluation share."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class GridCache:
    """The last value of each name: vectors of two corpora may not fit into memory."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, Any]] = {}

    def get(self, name: str, key: Any, make: Callable[[], T]) -> T:
        """Return the value made for `key`, or make it and drop the previous one of this name."""
        if name not in self._kept or self._kept[name][0] != key:
            self._kept.pop(name, None)
            self._kept[name] = key, make()
        made: T = self._kept[name][1]
        return made
