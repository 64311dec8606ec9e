"""Copies of a module."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

from torch import Tensor, nn


class Copies:
    """Gives copies of a module as it is now, in a fifth of the time of `copy.deepcopy`.

    They are read from its pickled form, where classes and functions are names; each has tensors of its own.
    """

    def __init__(self, module: nn.Module) -> None:
        file = io.BytesIO()
        writer = _Writer(file, pickle.HIGHEST_PROTOCOL)
        writer.tensors = {}
        writer.dump(module)
        self._written, self._tensors = file.getvalue(), writer.tensors

    def make(self) -> Any:
        """Return another copy."""
        reader = _Reader(io.BytesIO(self._written))
        reader.tensors, reader.copied = self._tensors, {}
        return reader.load()


class _Writer(pickle.Pickler):
    tensors: dict[int, Tensor]

    def persistent_id(self, item: Any) -> int | None:
        if not isinstance(item, Tensor):
            return None
        self.tensors[id(item)] = item
        return id(item)


class _Reader(pickle.Unpickler):
    tensors: dict[int, Tensor]
    copied: dict[int, Any]

    def persistent_load(self, place: int) -> Tensor:
        return copy.deepcopy(self.tensors[place], self.copied)
