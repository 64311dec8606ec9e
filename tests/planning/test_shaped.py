"""Tensors without values: shapes, autocast, bytes and operations, against the same computation with values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from embrew.losses import dependencies
from embrew.shaped import Shaped, counting, has_values, kind_of, shaped, shaped_modules, shaped_of


def test_a_layer_by_hand():
    """x (3, 4) float32 and W (5, 4): y has 3 · 5 numbers, the product 2 · 3 · 4 · 5 operations, its gradients twice."""
    weight = nn.Parameter(shaped(torch.empty(5, 4)))
    x = shaped(torch.empty(3, 4))
    with counting("cpu") as ledger:
        ledger.is_there([weight.inside, x.inside])
        y = nn.functional.linear(x, weight)
        assert (ledger.now, ledger.flop) == (3 * 5 * 4, 2 * 3 * 4 * 5)
        y.sum().backward()
        assert ledger.flop == 2 * (2 * 3 * 4 * 5)  # x needs no gradient
        del y
        assert ledger.now == weight.grad.nbytes == 5 * 4 * 4


def test_values_are_absent_and_choices_stay():
    found = shaped(torch.ones(2, 3))
    assert isinstance(found, Shaped) and not has_values(found) and has_values(torch.ones(1))
    assert float(found.sum()) == 0.0 and found.tolist() == [[0.0] * 3] * 2
    with counting("cuda") as ledger:
        assert kind_of(found) == "cuda" and kind_of(torch.tensor([1.0])) == "cpu"
        made = torch.zeros(7)
        chosen = torch.tensor([2, 0, 1]).argsort().tolist()
        assert isinstance(made, Shaped) and chosen == [1, 2, 0]
        assert ledger.now == 28
        del made
        assert (ledger.now, ledger.peak) == (0, 28)
    assert kind_of(found) == "cpu"


@pytest.mark.parametrize("autocast", [False, True])
def test_dtypes_and_shapes_are_those_of_the_values(autocast):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    ids = torch.arange(6).view(2, 3)
    twin = shaped_modules(model)
    assert all(has_values(p) for p in model.parameters())
    found = []
    for one in (model, twin):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = one(ids)
        out.float().square().mean().backward()
        found.append([(out.shape, out.dtype), *((p.grad.shape, p.grad.dtype) for p in one.parameters())])
    assert found[0] == found[1] and len(found[0]) == 8


def test_a_counted_tensor_is_freed_once():
    with counting("cpu") as ledger:
        made = shaped_of((10,), torch.int64)
        view = made[2:]
        assert ledger.now == 80
        del made
        assert ledger.now == 80
        del view
        assert ledger.now == 0


def test_random_numbers_that_are_kept_have_values():
    """ESE draws its subspace once in a process, whether a step is counted or trained."""
    dependencies._drawn.cache_clear()
    vectors = torch.randn(2, 40, 48, generator=torch.Generator().manual_seed(1))
    with counting("cpu"):
        counted = dependencies.principal_dependencies(shaped(vectors), 4)
    found = dependencies.principal_dependencies(vectors, 4)
    assert (counted.shape, counted.dtype) == (found.shape, found.dtype) and not has_values(counted)
    assert has_values(dependencies._drawn(48, 36)) and has_values(found) and float(found.abs().sum()) > 0
