"""The streamed covariance against numpy's, and data whose spectrum is known."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embrew.analysis.spectrum import (
    covariance,
    dimensions_for,
    effective_dimensions,
    participation_ratio,
    rankme,
    singular_values,
    spectrum_of,
)


def vectors(count=60, dimensions=8, *, seed=0, offset=0.0):
    chance = np.random.default_rng(seed)
    return chance.normal(size=(count, dimensions)) @ chance.normal(size=(dimensions, dimensions)) + offset


def chunks(rows, size):
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 70), seed=st.integers(0, 9), shuffled=st.randoms(use_true_random=False))
def test_chunks_and_order_do_not_matter_and_numpy_agrees(size, seed, shuffled):
    rows = vectors(seed=seed, offset=3.0)
    order = list(range(len(rows)))
    shuffled.shuffle(order)
    mean, matrix, count = covariance(chunks(rows[order], size))
    assert count == 60
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(matrix, np.cov(rows.T), rtol=1e-10, atol=1e-12)


def test_singular_values_are_those_of_the_centred_matrix():
    rows = vectors(seed=1, offset=5.0)
    _, matrix, _ = covariance(chunks(rows, 7))
    of_rows = np.linalg.svd(rows - rows.mean(0), compute_uv=False)
    np.testing.assert_allclose(singular_values(matrix), of_rows**2 / 59, rtol=1e-10)


def test_small_singular_values_survive_a_mean_far_from_zero():
    """Sums of raw outer products lose them: a variance of 1e-6 beside squares of 1e12."""
    chance = np.random.default_rng(2)
    rows = chance.normal(size=(500, 3)) * [1.0, 1e-1, 1e-3] + 1e6
    _, matrix, _ = covariance(chunks(rows, 100))
    np.testing.assert_allclose(np.sqrt(singular_values(matrix)), [1.0, 1e-1, 1e-3], rtol=0.1)
    raw = rows.T @ rows / 500 - np.outer(rows.mean(0), rows.mean(0))
    assert abs(np.linalg.eigvalsh(raw)[0]) > 1e-5  # what should be 1e-6


def test_memory_does_not_grow_with_the_number_of_vectors():
    def peak(number):
        tracemalloc.start()
        covariance(np.full((100, 32), i % 7, dtype=np.float32) for i in range(number))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(200) < 1.2 * peak(10)


def test_isotropic_gaussian_uses_every_dimension():
    rows = np.random.default_rng(0).normal(size=(20_000, 10)).astype(np.float32)
    found = spectrum_of(chunks(rows, 4096)).summary()
    assert (found["texts"], found["dimensions"], found["effective_dimensions"]) == (20_000, 10, 10)
    assert found["energy_dimensions"] == {"0.9": 9, "0.95": 10, "0.99": 10}
    assert found["participation_ratio"] == pytest.approx(10, rel=0.01)
    assert found["rankme"] == pytest.approx(10, rel=0.01)


def test_rank_one_uses_one_dimension():
    chance = np.random.default_rng(0)
    rows = np.outer(chance.normal(size=100), chance.normal(size=6)) + 2.0
    found = spectrum_of([rows]).summary()
    assert found["effective_dimensions"] == 1
    assert found["energy_dimensions"] == {"0.9": 1, "0.95": 1, "0.99": 1}
    assert found["participation_ratio"] == pytest.approx(1)
    assert found["rankme"] == pytest.approx(1, abs=1e-5)


def test_figures_by_hand():
    values = np.array([16.0, 4.0, 0.16, 0.0])
    assert effective_dimensions(values) == 2  # 0.16 is not above 1 % of 16
    assert effective_dimensions(values, threshold=0.009) == 3
    assert effective_dimensions(values, threshold=0.5) == 1
    assert dimensions_for(values, energy=0.5) == 1  # 16 of 20.16 are 79 %
    assert dimensions_for(values, energy=0.9) == 2
    assert dimensions_for(values, energy=0.995) == 3
    assert dimensions_for(np.full(10, 0.1), energy=0.9) == 9  # reached exactly
    assert participation_ratio(values) == pytest.approx(20.16**2 / (16**2 + 4**2 + 0.16**2))
    p = np.array([4, 2, 0.4]) / 6.4  # roots: singular values of the vectors, not of their covariance
    assert rankme(values) == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    assert rankme(np.full(5, 3.0)) == pytest.approx(5)


def test_scale_and_rotation_change_nothing():
    rows = vectors(300, 6, seed=3)
    rotation, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(6, 6)))
    one, other = spectrum_of([rows]).summary(), spectrum_of([100 * rows @ rotation + 7]).summary()
    for key in ("participation_ratio", "rankme"):
        assert other[key] == pytest.approx(one[key], rel=1e-9)
    for key in ("effective_dimensions", "energy_dimensions"):
        assert other[key] == one[key]


def test_fewer_texts_than_dimensions_is_said(caplog):
    spectrum_of([vectors(8, 8)])
    assert "8 texts for 8 dimensions: at most 7 singular values can differ from zero" in caplog.text
    caplog.clear()
    spectrum_of([vectors(9, 8)])
    assert not caplog.records


def test_what_has_no_spectrum():
    with pytest.raises(ValueError, match="covariance of 1 vectors; give two or more"):
        spectrum_of([np.ones((1, 4)), np.ones((0, 4))])
    same = np.tile(np.random.default_rng(0).normal(size=8).astype(np.float32), (20, 1))
    with pytest.raises(ValueError, match="all 20 vectors are the same"):
        spectrum_of(chunks(same, 3))
    with pytest.raises(ValueError, match="threshold=1; it is a share"):
        spectrum_of([np.eye(3)], threshold=1)
