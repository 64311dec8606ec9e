"""Pairs with grades: sums by hand, plain loops, and Sentence-Transformers' own values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import AnglELoss, CoSENTLoss

from embrew.losses import angle, angle_similarity, cosent, pair_ranking


def vectors(seed, rows=6, width=8, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, width, generator=generator, dtype=dtype).requires_grad_() for _ in range(2)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-20, 20), st.integers(0, 3)), min_size=1, max_size=12))
def test_ranking_is_a_plain_loop(pairs):
    scores = torch.tensor([score for score, _ in pairs], dtype=torch.float64)
    grades = torch.tensor([grade for _, grade in pairs])
    total = 1 + sum(math.exp(a - b) for a, low in pairs for b, high in pairs if low < high)
    assert float(pair_ranking(scores, grades)) == pytest.approx(math.log(total), rel=1e-9, abs=1e-12)


def test_equal_grades_teach_nothing():
    left, right = vectors(0)
    for loss in (cosent, angle):
        value = loss(left, right, torch.ones(6))
        assert value == 0
        (grad,) = torch.autograd.grad(value, left)
        assert torch.equal(grad, torch.zeros_like(grad))


def test_angle_is_the_complex_division_of_the_paper():
    """Eq. 5 written out: real and imaginary parts of z/w, divided by |z|/|w|, summed, taken absolutely."""
    left, right = (v.detach() for v in vectors(1))
    (a, b), (c, d) = left.chunk(2, -1), right.chunk(2, -1)
    size = (c**2 + d**2).sum(-1, keepdim=True)
    quotient = torch.cat([(a * c + b * d) / size, (b * c - a * d) / size], dim=-1)
    quotient = quotient / ((a**2 + b**2).sum(-1, keepdim=True).sqrt() / size.sqrt())
    torch.testing.assert_close(angle_similarity(left, right), quotient.sum(-1).abs(), rtol=0, atol=1e-12)
    torch.testing.assert_close(angle_similarity(left, left), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize(("ours", "theirs"), [(cosent, CoSENTLoss), (angle, AnglELoss)])
def test_value_and_gradient_of_sentence_transformers(ours, theirs):
    left, right = vectors(2, rows=9)
    grades = torch.tensor([0.0, 1, 1, 0.5, 0, 2, 1, 0.5, 3], dtype=torch.float64)
    peer = theirs(SentenceTransformer(modules=[torch.nn.Identity()]), scale=20.0)
    expected = peer.compute_loss_from_embeddings([left, right], grades)
    value = ours(left, right, grades, temperature=0.05)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    for one, other in zip(
        torch.autograd.grad(value, [left, right]), torch.autograd.grad(expected, [left, right]), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def test_what_is_refused():
    left, right = vectors(5, width=7)
    with pytest.raises(ValueError, match="7 dimensions do not split"):
        angle(left, right, torch.arange(6))
    with pytest.raises(ValueError, match="temperature=0"):
        cosent(left, right, torch.arange(6), temperature=0)
