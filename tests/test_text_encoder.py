import copy

import numpy as np
import pytest
from tokenizers import normalizers, pre_tokenizers

from embrew.text_encoder import checked_vectors, unit_vectors, vectors_hash


def test_vectors_without_a_direction_are_an_error():
    np.testing.assert_allclose(unit_vectors([[3.0, 4.0]], what="texts"), [[0.6, 0.8]])
    np.testing.assert_allclose(checked_vectors([[3.0, 4.0]], what="texts"), [[3.0, 4.0]])
    for bad in ([0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]):
        for check in (unit_vectors, checked_vectors):
            with pytest.raises(ValueError, match=r"1 of 2 vectors of texts are zero or not finite .*number 1"):
                check([[1.0, 0.0], bad], what="texts")


def test_the_hash_of_what_decides_vectors_knows_the_tokenizer(make_encoder):
    """Its parts that make ids; not what calls leave in it."""
    encoder = make_encoder()
    before, weights = vectors_hash(encoder), encoder.weights_hash()
    found = {before}
    for change in (
        lambda own: setattr(own.backend_tokenizer, "normalizer", normalizers.Lowercase()),
        lambda own: setattr(own.backend_tokenizer, "pre_tokenizer", pre_tokenizers.Whitespace()),
        lambda own: own.backend_tokenizer.add_tokens(["fox"]),
        lambda own: setattr(own, "eos_token", "<pad>"),
    ):
        encoder = make_encoder()
        encoder.tokenizer = copy.deepcopy(encoder.tokenizer)
        change(encoder.tokenizer)
        assert encoder.weights_hash() == weights
        found.add(vectors_hash(encoder))
    assert len(found) == 5
    encoder = make_encoder()
    encoder.tokenizer = copy.deepcopy(encoder.tokenizer)
    encoder.tokenizer(["a", "b c d"], truncation=True, max_length=3, padding=True)
    encoder.tokenizer.backend_tokenizer.enable_truncation(4)
    assert vectors_hash(encoder) == before
