"""Copies of frozen weights in the dtype of autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Copies:
    """A copy of a weight in another dtype, until the weight changes. Copied or pickled, it is empty."""

    def __init__(self) -> None:
        self._kept: tuple[Any, Tensor] | None = None

    def of(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight in a dtype; itself, if it is in that."""
        if weight.dtype == dtype:
            return weight
        key = (weight.data_ptr(), weight._version, dtype)
        if self._kept is None or self._kept[0] != key:
            with torch.inference_mode(False):  # it serves training too
                self._kept = key, weight.detach().to(dtype)
        return self._kept[1]

    def __reduce__(self) -> tuple[type[Copies], tuple[()]]:
        return Copies, ()
