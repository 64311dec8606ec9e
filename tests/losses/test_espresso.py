"""ESE's sums, by hand."""

import math

import pytest
import torch

from embrew.losses.espresso import compression_loss, layer_weights


def test_weights():
    weights = layer_weights(6)
    assert weights.tolist() == pytest.approx([1 / (1 + math.log(i)) for i in range(1, 6)] + [1.0])
    assert layer_weights(1).tolist() == [1.0]


def test_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    leading, target = torch.randn(2, 3, 5, 4, generator=generator)
    found = compression_loss(leading, target, temperature=0.7)
    for layer in range(3):
        squares = sum((leading[layer, i, j] - target[layer, i, j]) ** 2 for i in range(5) for j in range(4)) / 20
        kl = 0.0
        for i in range(5):
            p, q = (torch.softmax(side[layer, i] / 0.7, 0) for side in (target, leading))
            kl += float((p * (p / q).log()).sum()) / 5
        assert found[layer].item() == pytest.approx(float(squares) + 0.7 * kl, rel=1e-5)


def test_the_target_is_a_constant_and_order_does_not_matter():
    leading = torch.randn(5, 4, requires_grad=True)
    target = torch.randn(5, 4, requires_grad=True)
    value = compression_loss(leading, target)
    assert torch.autograd.grad(value, [leading, target], allow_unused=True)[1] is None
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(compression_loss(leading[order], target[order]), value)


def test_what_cannot_be():
    with pytest.raises(ValueError, match="must have the same shape"):
        compression_loss(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="temperature=0"):
        compression_loss(torch.zeros(2, 3), torch.zeros(2, 3), temperature=0)
