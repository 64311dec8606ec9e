"""A frozen weight in the dtype of autocast, cast once and not per call."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor


class CastWeight:
    """A copy of a weight in another dtype, until the weight changes. Copied or pickled, it is empty.

    A change through `weight.data` is not noticed, since PyTorch does not count it.
    """

    def __init__(self) -> None:
        self._copy: tuple[Hashable, Tensor] | None = None

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight in a dtype; itself, if it has that dtype."""
        if weight.dtype == dtype:
            return weight
        version = None if weight.is_inference() else weight._version  # inference tensors have none
        key = weight.data_ptr(), version, dtype
        cached = self._copy  # another thread may replace it
        if cached is None or cached[0] != key:
            with torch.inference_mode(False):  # it serves training too
                cached = self._copy = key, weight.detach().to(dtype)
        return cached[1]

    def __reduce__(self) -> tuple[type[CastWeight], tuple[()]]:
        return CastWeight, ()
