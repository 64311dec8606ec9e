"""An export with fewer layers and dimensions is stock, holds no further weights, and gives our vectors."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sentence_transformers import SentenceTransformer
from transformers import AlbertConfig, AutoConfig

from embrew import Encoder
from embrew.cutting import cut
from embrew.export.exporting import export_encoder
from embrew.runtimes.portable import nested_dimensions
from embrew.settings.encoder import Pooling
from tests.conftest import ENCODER_CONFIGS, ENCODER_FAMILIES, ENCODER_SIZES, FAMILIES, SENTENCES, by_default

TEXTS = [*SENTENCES, "", "a", "long " * 200]


def compare(encoder, folder, layers, dim):
    """Opened by Sentence-Transformers alone: the same unit vectors, with that many layers."""
    stock = SentenceTransformer(str(folder), device="cpu")
    vectors = stock.encode(TEXTS, show_progress_bar=False)
    assert vectors.shape == (len(TEXTS), dim)
    assert stock.get_embedding_dimension() == dim
    assert np.abs(vectors - encoder.encode(TEXTS, num_layers=layers, truncate_dim=dim)).max() < 1e-5
    assert np.allclose(np.linalg.norm(vectors[: len(SENTENCES)], axis=1), 1, atol=1e-5), (
        "cut before it is normalised, not after"
    )
    config = AutoConfig.from_pretrained(folder)
    assert config.num_hidden_layers == layers
    assert not hasattr(config, "matryoshka_dimensions"), "fewer dimensions than the model has, none of them trained so"
    with safe_open(folder / "model.safetensors", framework="np") as weights:
        names = list(weights.keys())
    stored = getattr(config, "num_hidden_groups", layers)  # ALBERT has one layer, which runs several times
    assert any(f".{stored - 1}." in name for name in names)
    assert not any(f".{stored}." in name for name in names), "the other layers are gone"


@pytest.mark.parametrize("family", by_default(["llama", "gemma3", "gpt-neox"], FAMILIES))
def test_every_family(family, make_encoder, tmp_path):
    encoder = make_encoder(family, lora={}, max_length=64)
    before = encoder.encode(TEXTS)
    export_encoder(encoder, tmp_path / "stock", verify="off", num_layers=1, truncate_dim=12)
    compare(encoder, tmp_path / "stock", 1, 12)
    assert np.array_equal(encoder.encode(TEXTS), before), "exporting changes nothing"


@pytest.mark.parametrize("family", by_default(["bert", "mpnet", "modernbert"], ENCODER_FAMILIES))
def test_every_encoder_family(family, encoder_folder, tmp_path):
    encoder = Encoder.from_pretrained(encoder_folder(family), device="cpu", pooling="cls", max_length=64)
    export_encoder(encoder, tmp_path / "stock", verify="off", num_layers=2, truncate_dim=12)
    compare(encoder, tmp_path / "stock", 2, 12)


def test_an_albert_that_shares_no_layers(encoder_folder, tmp_path, monkeypatch):
    """It chooses a layer by the numbers of layers and of groups; both are fewer."""
    monkeypatch.setitem(ENCODER_CONFIGS, "albert-3", AlbertConfig(**ENCODER_SIZES, num_hidden_groups=3))
    encoder = Encoder.from_pretrained(encoder_folder("albert-3"), device="cpu", pooling="cls", max_length=64)
    export_encoder(encoder, tmp_path / "stock", verify="off", num_layers=2, truncate_dim=12)
    compare(encoder, tmp_path / "stock", 2, 12)


@pytest.mark.parametrize(
    "pooling", by_default(["last", "mean"], ["last", "mean", "weighted_mean", Pooling("mean", "text")])
)
def test_every_pooling(pooling, make_encoder, tmp_path):
    """In float32; and in bfloat16, where the stock module meets the dtype of what it is given."""
    encoder = make_encoder(lora={}, max_length=64, memory_tokens=0, pooling=pooling, attention="causal")
    export_encoder(encoder, tmp_path / "stock", verify="off", num_layers=1, truncate_dim=12)
    compare(encoder, tmp_path / "stock", 1, 12)
    encoder.backbone.to(torch.bfloat16)
    export_encoder(encoder, tmp_path / "half", verify="off", num_layers=1, truncate_dim=12)
    vectors = SentenceTransformer(str(tmp_path / "half"), device="cpu").encode(SENTENCES, show_progress_bar=False)
    assert np.abs(vectors - encoder.encode(SENTENCES, num_layers=1, truncate_dim=12)).max() < 2e-2


def test_dimensions_come_from_the_recipe(make_encoder):
    """Those that were trained, up to what is kept."""
    encoder = make_encoder()
    encoder.recipe = """
    stages:
      - {objective: {type: contrastive}}
      - {objective: {type: matryoshka_2d, dims: [8, 16, 32], base: {type: contrastive}}}
    """
    assert nested_dimensions(encoder) == [8, 16, 32]
    assert nested_dimensions(cut(encoder, truncate_dim=20)) == [8, 16, 20]
    encoder.recipe = "stages: [{objective: {type: espresso, compression_size: 16}}]"
    assert nested_dimensions(encoder) == [16, 32]
    encoder.recipe = "stages: [{objective: {type: contrastive}}]"
    assert nested_dimensions(encoder) == []


def test_what_is_refused(make_encoder, tmp_path):
    with pytest.raises(ValueError, match="num_layers=3; choose from 1 to 2"):
        export_encoder(make_encoder(), tmp_path / "stock", num_layers=3)
    assert not (tmp_path / "stock").exists()
