"""The spectrum of data whose singular values are known."""

import numpy as np
import pytest

from embrew.analysis.spectrum import Spectrum, spectrum_of


def vectors(count=60, dimensions=8, *, seed=0, offset=0.0):
    chance = np.random.default_rng(seed)
    return chance.normal(size=(count, dimensions)) @ chance.normal(size=(dimensions, dimensions)) + offset


def test_singular_values_are_those_of_the_centred_matrix():
    rows = vectors(seed=1, offset=5.0)
    of_rows = np.linalg.svd(rows - rows.mean(0), compute_uv=False)
    np.testing.assert_allclose(spectrum_of(rows).singular_values, of_rows**2 / 59, rtol=1e-10)


def test_small_singular_values_survive_a_mean_far_from_zero():
    """Sums of raw outer products lose them: a variance of 1e-6 beside squares of 1e12."""
    rows = np.random.default_rng(2).normal(size=(500, 3)) * [1.0, 1e-1, 1e-3] + 1e6
    np.testing.assert_allclose(np.sqrt(spectrum_of(rows).singular_values), [1.0, 1e-1, 1e-3], rtol=0.1)


def test_isotropic_gaussian_uses_every_dimension():
    summary = spectrum_of(np.random.default_rng(0).normal(size=(20_000, 10)).astype(np.float32)).summary()
    assert (summary["texts"], summary["dimensions"], summary["effective_dimensions"]) == (20_000, 10, 10)
    assert summary["energy_dimensions"] == {"0.9": 9, "0.95": 10, "0.99": 10}
    assert summary["participation_ratio"] == pytest.approx(10, rel=0.01)
    assert summary["rankme"] == pytest.approx(10, rel=0.01)


def test_rank_one_uses_one_dimension():
    chance = np.random.default_rng(0)
    summary = spectrum_of(np.outer(chance.normal(size=100), chance.normal(size=6)) + 2.0).summary()
    assert summary["effective_dimensions"] == 1
    assert summary["energy_dimensions"] == {"0.9": 1, "0.95": 1, "0.99": 1}
    assert summary["participation_ratio"] == pytest.approx(1)
    assert summary["rankme"] == pytest.approx(1, abs=1e-5)


def test_figures_by_hand():
    def spectrum(*values, threshold=0.01):
        return Spectrum(np.array(values), 99, threshold)

    values = 16.0, 4.0, 0.16, 0.0
    assert spectrum(*values).effective_dimensions == 2  # 0.16 is not above 1 % of 16
    assert spectrum(*values, threshold=0.009).effective_dimensions == 3
    assert spectrum(*values, threshold=0.5).effective_dimensions == 1
    # 16 of 20.16 are 79 %
    assert [spectrum(*values).dimensions_for(energy) for energy in (0.5, 0.9, 0.995)] == [1, 2, 3]
    assert spectrum(*[0.1] * 10).dimensions_for(0.9) == 9  # reached exactly
    assert spectrum(*values).participation_ratio == pytest.approx(20.16**2 / (16**2 + 4**2 + 0.16**2))
    p = np.array([4, 2, 0.4]) / 6.4  # roots: singular values of the vectors, not of their covariance
    assert spectrum(*values).rankme == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    assert spectrum(*[3.0] * 5).rankme == pytest.approx(5)


def test_fewer_texts_than_dimensions_is_said(caplog):
    spectrum_of(vectors(8, 8))
    assert "8 texts for 8 dimensions: at most 7 singular values can differ from zero" in caplog.text
    caplog.clear()
    spectrum_of(vectors(9, 8))
    assert not caplog.records


def test_what_has_no_spectrum():
    with pytest.raises(ValueError, match="covariance of 1 vectors; give two or more"):
        spectrum_of(np.ones((1, 4)))
    same = np.tile(np.random.default_rng(0).normal(size=8).astype(np.float32), (20, 1))
    with pytest.raises(ValueError, match="all 20 vectors are the same"):
        spectrum_of(same)
    with pytest.raises(ValueError, match="threshold=1; it is a share"):
        spectrum_of(np.eye(3), threshold=1)
