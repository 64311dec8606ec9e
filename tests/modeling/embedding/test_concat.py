"""Pooling that concatenates the states of memory tokens, in an encoder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from embrew.analysis.memory import pool_over
from embrew.encoder import Encoder
from embrew.settings.encoder import Pooling
from tests.conftest import SENTENCES


def concatenating(make_encoder: Callable[..., Encoder], **settings: object) -> Encoder:
    return make_encoder(memory_tokens=3, pooling=Pooling("concat", "memory"), **settings)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_vectors_are_the_memory_states(make_encoder, attention):
    encoder = concatenating(make_encoder, attention=attention)
    assert encoder.get_embedding_dimension() == encoder.describe()["dimensions"] == 3 * 32
    vectors = encoder.encode(SENTENCES)
    with torch.no_grad():
        for text, vector in zip(SENTENCES, vectors, strict=True):  # one text at a time, without padding
            states = encoder.hidden_states(encoder.tokenize([text]))[0, -3:]
            wanted = torch.nn.functional.normalize(states.flatten(), dim=0)
            assert np.abs(vector - wanted.numpy()).max() < 1e-5


def test_dimensions_are_cut_before_they_are_normalised(make_encoder):
    encoder = concatenating(make_encoder)
    first = pool_over(encoder, [0])
    assert np.abs(encoder.encode(SENTENCES, truncate_dim=32) - first.encode(SENTENCES)).max() < 1e-6
    assert encoder.encode(SENTENCES, truncate_dim=40).shape == (5, 40)
    with pytest.raises(ValueError, match="truncate_dim=97; choose from 1 to 96"):
        encoder.encode(SENTENCES, truncate_dim=97)


def test_a_trained_mean_is_read_so_and_saved_so(model_folder, tmp_path):
    settings = {"template": "{text}{memory}", "memory_tokens": 3, "pooling": Pooling("mean", "memory")}
    encoder = Encoder.from_pretrained(model_folder("llama"), **settings)  # type: ignore[arg-type]
    view = pool_over(encoder, mode="concat")
    vectors = view.encode(SENTENCES)
    assert vectors.shape == (5, 96)
    assert encoder.encode(SENTENCES).shape == (5, 32)
    assert view.weights_hash() != encoder.weights_hash()
    view.save_pretrained(tmp_path / "saved")
    again = Encoder.from_pretrained(tmp_path / "saved")
    assert again.get_embedding_dimension() == 96
    np.testing.assert_array_equal(again.encode(SENTENCES), vectors)
