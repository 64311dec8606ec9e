"""Matrix products in full float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_float32(device_type: str) -> Iterator[None]:
    """Within this context, products of float32 tensors are float32: no autocast, and no TF32 on an NVIDIA GPU.

    TF32, which training switches on where a GPU has it, keeps 10 bits of a float32 number's 23. It is a setting of the
    process; a backward pass that runs later is computed as it says.
    """
    with torch.autocast(device_type, enabled=False):
        if device_type != "cuda":
            yield
            return
        matmul = torch.backends.cuda.matmul
        before = matmul.fp32_precision
        matmul.fp32_precision = "none"  # then it is that of `torch.backends.fp32_precision`, which the Trainer sets
        inherited = matmul.fp32_precision == before
        matmul.fp32_precision = "ieee"
        try:
            yield
        finally:
            matmul.fp32_precision = "none" if inherited else before
