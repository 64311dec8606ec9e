"""Full float32 where TF32 is on; the settings of PyTorch are read on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from embrew.float32 import full_float32
from embrew.modeling.model.packed_check import _Probe

MATMUL = torch.backends.cuda.matmul


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    torch.backends.fp32_precision = "none"
    MATMUL.fp32_precision = "none"


@pytest.mark.parametrize("place", ["everywhere", "products"])
def test_the_setting_is_restored(place: str) -> None:
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


def test_packed_rows_are_compared_less_strictly_with_tf32() -> None:
    probe: Any = object.__new__(_Probe)
    probe.inner = SimpleNamespace(device=SimpleNamespace(type="cuda"), dtype=torch.float32)
    probe.real = torch.ones(1, 2, dtype=torch.bool)
    states = torch.ones(1, 2, 3)
    assert not probe._close(states + 1e-3, states, 1.0)
    torch.backends.fp32_precision = "tf32"
    assert probe._close(states + 1e-3, states, 1.0)
    assert not probe._close(states + 1e-2, states, 1.0)
