"""The contrast of alignment against the printed formula, its bounds, and large numbers."""

from __future__ import annotations

import math

import pytest
import torch

from embrew.losses import conditional_alignment_loss, token_divergences, token_log_probs


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("logarithm", [False, True])
def test_against_the_formula(logarithm):
    near, far, owner = [0.3, 1.2, 0.0], [0.5, -0.7, 2.0, 0.1], [0, 2, 1, 0]
    score = (lambda x: -math.log(sigma(x))) if logarithm else (lambda x: -sigma(x))
    wanted = 0.0
    for i, n in enumerate(near):
        e = [math.exp(score(f) / 0.1) for f, o in zip(far, owner, strict=True) if o == i]
        wanted += -math.log(math.exp(score(n) / 0.1) / (math.exp(score(n) / 0.1) + sum(e))) / 3
    found = conditional_alignment_loss(torch.tensor(near), torch.tensor(far), torch.tensor(owner), logarithm=logarithm)
    assert found.item() == pytest.approx(wanted, rel=1e-5)


def test_log_sigmoid_stays_finite_far_out():
    far = torch.tensor([-5000.0], requires_grad=True)
    loss = conditional_alignment_loss(torch.zeros(1), far, torch.zeros(1, dtype=torch.long), logarithm=True)
    (grad,) = torch.autograd.grad(loss, far)
    assert loss.item() == pytest.approx(5000 / 0.1, rel=1e-2) and grad.item() == pytest.approx(-10.0, rel=1e-3)


def test_log_probabilities_of_single_rows():
    hidden = torch.randn(7, 8, requires_grad=True)
    weight, labels = torch.randn(20, 8), torch.arange(7)
    found = token_log_probs(hidden, labels, weight, chunk_size=3)
    wanted = (hidden @ weight.T).log_softmax(-1)[torch.arange(7), labels]
    torch.testing.assert_close(found, wanted)
    direction = torch.randn(7)
    ours, theirs = (torch.autograd.grad((x * direction).sum(), hidden)[0] for x in (found, wanted))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["kl", "js"])
def test_divergences_with_gradients_on_both_sides(kind):
    one, other = (torch.randn(5, 8, requires_grad=True) for _ in range(2))
    weight, bias = torch.randn(20, 8), torch.randn(20)
    found = token_divergences(one, other, weight, bias, kind=kind, chunk_size=2)  # type: ignore[arg-type]
    p, q = ((x @ weight.T + bias).softmax(-1) for x in (one, other))
    if kind == "kl":
        wanted = (p * (p / q).log()).sum(-1)
    else:
        m = (p + q) / 2
        wanted = ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)) / 2
        assert (found <= math.log(2) + 1e-6).all()
        torch.testing.assert_close(token_divergences(other, one, weight, bias, kind="js"), found)
    torch.testing.assert_close(found, wanted)
    ours, theirs = (torch.autograd.grad(x.sum(), [one, other], retain_graph=True) for x in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    same = token_divergences(one, one, weight, bias, kind=kind)  # type: ignore[arg-type]
    assert same.abs().max() < 1e-6
