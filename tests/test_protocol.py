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


def test_an_empty_text_may_have_no_direction():
    texts = ["word", " \n"]
    np.testing.assert_array_equal(unit_vectors([[0.0, 2.0], [0.0, 0.0]], what="texts", texts=texts), [[0, 1], [0, 0]])
    np.testing.assert_array_equal(checked_vectors([[0.0, 2.0], [0.0, 0.0]], what="texts", texts=texts)[1], [0, 0])
    for vectors in ([[0.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [np.nan, 0.0]]):
        with pytest.raises(ValueError, match="1 of 2 vectors of texts are zero"):
            unit_vectors(vectors, what="texts", texts=texts)
