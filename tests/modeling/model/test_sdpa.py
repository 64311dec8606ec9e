"""Attention on a CPU: float32 under autocast, and dropout that costs little, with the library's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from embrew.model.cpu.attention import sdpa
from embrew.model.cpu.dropout import drop_out


def layer(*, is_causal: bool, groups: int) -> Any:
    module = nn.Module()
    module.is_causal, module.num_key_value_groups = is_causal, groups
    return module


def states(rows: int = 2, tokens: int = 6, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(rows, heads, tokens, 8, dtype=dtype, requires_grad=True) for heads in (4, 2, 2)]


@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("causal", [True, False])
def test_dropout_zeroes_weights_of_the_library(mask, causal, monkeypatch):
    """Without anything dropped it is the library's attention; the branch is the one with dropout."""
    module, (q, k, v) = layer(is_causal=causal, groups=2), states()
    given = None
    if mask is not None:
        seen = (
            torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
            & (torch.arange(6) < torch.tensor([6, 4])[:, None])[:, None, None]
        )
        seen = seen | torch.eye(6, dtype=torch.bool)
        given = seen if mask == "bool" else torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    wanted, _ = sdpa_attention_forward(module, q, k, v, given)
    monkeypatch.setattr("embrew.model.cpu.attention.drop_out", lambda weights, p: weights)
    found, _ = sdpa(module, q, k, v, given, dropout=0.3)
    assert torch.allclose(found, wanted, atol=1e-6)


def test_what_is_dropped_and_its_gradient():
    torch.manual_seed(1)
    weights = torch.rand(300, 300, requires_grad=True)
    dropped = drop_out(weights, 0.2)
    kept = dropped != 0
    assert torch.allclose(dropped[kept], weights[kept] / 0.8)
    assert abs(float(kept.double().mean()) - 0.8) < 4.5 * (0.16 / weights.numel()) ** 0.5
    (grad,) = torch.autograd.grad(dropped.sum(), weights)
    assert torch.equal(grad, torch.where(kept, 1 / 0.8, 0.0))


def test_under_autocast_it_is_float32():
    module, (q, k, v) = layer(is_causal=True, groups=2), states()
    exact, _ = sdpa_attention_forward(module, *(x.double() for x in (q, k, v)), None)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _ = sdpa_attention_forward(module, q, k, v, None)
        found, _ = sdpa(module, q, k, v, None)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-5 < (rounded - exact).abs().max()
