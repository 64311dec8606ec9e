import numpy as np
import pytest

from embrew.protocol import checked_vectors, unit_vectors


def test_vectors_without_a_direction_are_an_error():
    np.testing.assert_allclose(unit_vectors([[3.0, 4.0]], what="texts"), [[0.6, 0.8]])
    np.testing.assert_allclose(checked_vectors([[3.0, 4.0]], what="texts"), [[3.0, 4.0]])
    for bad in ([0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]):
        for check in (unit_vectors, checked_vectors):
            with pytest.raises(ValueError, match=r"1 of 2 vectors of texts are zero or not finite .*number 1"):
                check([[1.0, 0.0], bad], what="texts")
