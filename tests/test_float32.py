"""Full float32 where TF32 is on; the settings of PyTorch are read on any machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from embrew.float32 import full_float32

MATMUL = torch.backends.cuda.matmul


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    torch.backends.fp32_precision = "none"
    MATMUL.fp32_precision = "none"


@pytest.mark.parametrize("place", ["everywhere", "products"])
def test_the_setting_is_restored(place):
    """Set as the Trainer sets it, or for products alone; a later change by the Trainer is in effect where it was."""
    if place == "everywhere":
        torch.backends.fp32_precision = "tf32"
    else:
        MATMUL.fp32_precision = "tf32"
    with full_float32("cuda"):
        assert MATMUL.fp32_precision == "ieee"
        with full_float32("cuda"):
            assert MATMUL.fp32_precision == "ieee"
        assert MATMUL.fp32_precision == "ieee"
    assert MATMUL.fp32_precision == "tf32"
    torch.backends.fp32_precision = "ieee"  # a stage with `tf32: false`
    assert MATMUL.fp32_precision == ("ieee" if place == "everywhere" else "tf32")
