"""Copies of frozen weights in the dtype of autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Copies:
    """A copy of a weight in another dtype, until the weight changes. Copied or pickled, it is empty.

    A change through `weight.data` is not noticed, since PyTorch does not count it.
    """

    def __init__(self) -> None:
        self._kept: tuple[Any, Tensor] | None = None

    def of(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight in a dtype; itself, if it is in that."""
        if weight.dtype == dtype:
            return weight
        version = None if weight.is_inference() else weight._version  # inference tensors have none
        key = weight.data_ptr(), version, dtype
        kept = self._kept  # another thread may replace it
        if kept is None or kept[0] != key:
            with torch.inference_mode(False):  # it serves training too
                kept = self._kept = key, weight.detach().to(dtype)
        return kept[1]

    def __reduce__(self) -> tuple[type[Copies], tuple[()]]:
        return Copies, ()
