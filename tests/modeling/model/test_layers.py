"""Layer i is the model cut to i layers, and all of them come out of one pass."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import DIFFERENT, FAMILIES, SENTENCES, by_default


@pytest.mark.parametrize("attention", ["causal", "bidirectional", "memory_causal"])
@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
def test_every_layer_is_the_cut_model(family, attention, make_encoder):
    """Values and gradients."""
    encoder = make_encoder(family, attention=attention, lora={"lora_dropout": 0.0})
    tokens = encoder.tokenize(SENTENCES)
    together = encoder.layer_embeddings(tokens)
    assert together.shape == (encoder.backbone.num_layers, len(SENTENCES), encoder.backbone.hidden_size)
    apart = torch.stack([encoder(tokens, num_layers=i + 1) for i in range(encoder.backbone.num_layers)])
    torch.testing.assert_close(together, apart, rtol=0, atol=2e-6)
    weights = [p for p in encoder.parameters() if p.requires_grad]
    direction = torch.randn(apart.shape, generator=torch.Generator().manual_seed(0))
    wanted = torch.autograd.grad((apart * direction).sum(), weights)
    largest = max(grad.abs().max() for grad in wanted)
    for one, other in zip(torch.autograd.grad((together * direction).sum(), weights), wanted, strict=True):
        assert (one - other).abs().max() <= 1e-5 * largest
    torch.testing.assert_close(encoder.layer_embeddings(tokens, num_layers=1), together[:1], rtol=0, atol=2e-6)


def test_one_pass_and_nothing_left_behind(make_encoder):
    encoder = make_encoder()
    runs: list[int] = []
    for number, layer in enumerate(encoder.backbone.inner.layers):
        layer.register_forward_hook(lambda *_, number=number: runs.append(number))
    before = [type(layer).__name__ for layer in encoder.backbone.inner.layers]
    tokens = encoder.tokenize(SENTENCES)
    with torch.inference_mode():
        shapes = encoder.backbone.read_layers(tokens, encoder.attention, lambda states: states[:, 0])
    assert runs == list(range(encoder.backbone.num_layers))
    assert [tuple(shape.shape) for shape in shapes] == [(len(SENTENCES), encoder.backbone.hidden_size)] * len(runs)
    runs.clear()
    with torch.inference_mode():
        encoder.layer_embeddings(tokens, num_layers=1)
    assert runs == [0]
    assert [type(layer).__name__ for layer in encoder.backbone.inner.layers] == before
