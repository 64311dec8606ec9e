"""Alignment and uniformity against the dense formulas, and points whose figures are known."""

import numpy as np
import pytest

from embrew.analysis.uniformity import alignment, alignment_uniformity, positive_pairs, uniformity
from tests.conftest import SENTENCES


def unit(count, dimensions=5, seed=0):
    rows = np.random.default_rng(seed).normal(size=(count, dimensions)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def dense(rows):
    rows = rows.astype(np.float64)
    squared = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    return np.log(np.exp(-2 * squared[np.triu_indices(len(rows), 1)]).mean())


@pytest.mark.parametrize("block", [1, 7, 40, 1024])
def test_uniformity_is_the_dense_formula_whatever_the_blocks(block, monkeypatch):
    monkeypatch.setattr("embrew.analysis.uniformity.BLOCK", block)
    assert uniformity(unit(40)) == pytest.approx(dense(unit(40)), abs=1e-6)


def test_known_points():
    east, north, west = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]
    assert uniformity(np.array([east, east])) == pytest.approx(0)  # collapsed: the worst there is
    assert uniformity(np.array([east, west])) == pytest.approx(-2 * 4)  # opposite: the best for two
    assert uniformity(np.array([east, north, west])) == pytest.approx(np.log((2 * np.exp(-4) + np.exp(-8)) / 3))
    assert alignment(np.array([east, east]), np.array([east, north])) == pytest.approx((0 + 2) / 2)


def test_positives_are_above_the_score():
    positives = positive_pairs(["a", "b", "c"], ["x", "y", "z"], [4.0, 4.2, 5.0])
    assert positives == [("b", "y"), ("c", "z")]
    with pytest.raises(ValueError, match="no pair scores above 4; the highest score is 3.5; give a lower threshold"):
        positive_pairs(["a"], ["x"], [3.5])


def test_of_texts(make_encoder):
    encoder = make_encoder(normalize=False)  # unit length is made where it is not
    vectors = encoder.encode(SENTENCES, normalize_embeddings=True)
    result = alignment_uniformity(encoder, [(SENTENCES[0], SENTENCES[4])], SENTENCES[:4], batch_tokens=200)
    assert (result.positives, result.texts) == (1, 4)
    assert result.alignment == pytest.approx(((vectors[0] - vectors[4]) ** 2).sum(), rel=1e-4)
    assert result.uniformity == pytest.approx(dense(vectors[:4]), abs=1e-5)
    with pytest.raises(ValueError, match="uniformity of 1 vectors"):
        uniformity(vectors[:1])
