"""A cut encoder is what `encode` gives of the whole at that layer, and shares its weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embrew import Encoder
from embrew.cutting import cut
from embrew.settings.encoder import Pooling
from tests.conftest import DIFFERENT, ENCODER_FAMILIES, FAMILIES, SENTENCES, by_default


def same(encoder: Encoder, layers: int, dim: int) -> None:
    small = cut(encoder, num_layers=layers, truncate_dim=dim)
    assert (small.backbone.num_layers, small.get_embedding_dimension()) == (layers, dim)
    vectors = small.encode(SENTENCES)
    assert np.array_equal(vectors, encoder.encode(SENTENCES, num_layers=layers, truncate_dim=dim))
    raw = encoder(encoder.tokenize(SENTENCES), num_layers=layers)[:, :dim].detach()  # truncated, then normalised
    np.testing.assert_allclose(vectors, torch.nn.functional.normalize(raw, dim=-1), atol=2e-6)
    assert not np.allclose(vectors, encoder.encode(SENTENCES)[:, :dim], atol=1e-2)


@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
def test_every_family(family, make_encoder):
    """With the adapter beside the weights; the configuration has as many layers as there are."""
    encoder = make_encoder(family, lora={})
    same(encoder, 1, 12)
    config = cut(encoder, num_layers=1).backbone.inner.config
    assert config.num_hidden_layers == 1
    assert len(getattr(config, "layer_types", None) or [""]) == 1


@pytest.mark.parametrize("family", by_default(["bert", "modernbert"], ENCODER_FAMILIES))
def test_every_encoder_family(family, encoder_folder):
    same(Encoder.from_pretrained(encoder_folder(family), device="cpu", pooling="cls", max_length=64), 2, 12)


def test_the_whole_is_left_alone(make_encoder):
    encoder = make_encoder(lora={}, pooling=Pooling("mean", "memory"))
    before, hash_before = encoder.encode(SENTENCES), encoder.weights_hash()
    small = cut(encoder, num_layers=1, truncate_dim=8)
    weight = next(small.backbone.inner.layers[0].parameters())
    assert weight.data_ptr() == next(encoder.backbone.inner.layers[0].parameters()).data_ptr()
    assert small.weights_hash() != hash_before
    assert small.describe()["num_layers"] == 1
    assert encoder.weights_hash() == hash_before
    assert encoder.backbone.num_layers == encoder.backbone.inner.config.num_hidden_layers == 2
    assert np.array_equal(encoder.encode(SENTENCES), before)


def test_what_is_refused(make_encoder, tmp_path):
    encoder = make_encoder()
    with pytest.raises(ValueError, match="num_layers=3; choose from 1 to 2"):
        cut(encoder, num_layers=3)
    with pytest.raises(ValueError, match="truncate_dim=33; choose from 1 to 32"):
        cut(encoder, truncate_dim=33)
    with pytest.raises(ValueError, match="truncated to 1 layers; an encoder's folder names a complete base; export it"):
        cut(encoder, num_layers=1).save_pretrained(tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
