"""Read and write chosen positions of tensors on a device by indices that are computed on the CPU.

Indexing with a boolean mask makes the CPU wait until the device has counted its entries, and an ordinary copy to the
device until it is done. Indices are therefore computed where the integers of a batch already are, on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Rows = Sequence[int] | np.ndarray | Tensor  # numbers of rows, known on the CPU


def upload(value: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on a device; a copy from the CPU is not waited for, and passes through pinned memory for CUDA."""
    device = torch.device(device)
    if value.device.type != "cpu" or device.type in ("cpu", "mps"):  # on Apple's GPUs, such copies are not safe
        return value.to(device)
    if device.type == "cuda" and not value.is_pinned():
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def index_of(chosen: Tensor, device: torch.device | str) -> Tensor:
    """Return the indices `(positions,)` of the true entries of a mask on the CPU, flattened, on a device."""
    return upload(chosen.flatten().nonzero()[:, 0], device)


def at(values: Tensor, chosen: Tensor) -> Tensor:
    """Return `values[chosen]`, for a mask on the CPU and values on any device."""
    return values.flatten(0, chosen.ndim - 1).index_select(0, index_of(chosen, values.device))


def write_at(values: Tensor, chosen: Tensor, rows: Tensor) -> Tensor:
    """Return a copy of `values` with `rows` at the true entries of a mask on the CPU, in order."""
    flat = values.flatten(0, chosen.ndim - 1)
    return flat.index_copy(0, index_of(chosen, values.device), rows).view_as(values)


def take(values: Tensor, rows: Rows, dim: int = 0) -> Tensor:
    """Return some rows of `values`, whose numbers are known on the CPU."""
    return values.index_select(dim, upload(torch.as_tensor(rows, dtype=torch.long), values.device))
