"""Latent attention: the sums of the paper in a loop, and that it is trained, saved and opened with the encoder."""

from math import sqrt

import numpy as np
import pytest
import torch

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.model.pooling import LatentAttention
from embrew.recipe import build
from embrew.settings.encoder import Pooling
from tests.conftest import SENTENCES

POOLING = Pooling("mean", "text", latents=5, heads=2, head_width=6)


def test_against_a_loop_over_tokens_and_heads():
    layer = LatentAttention(8, latents=5, heads=2, head_width=6).double()
    states = torch.randn(3, 4, 8, dtype=torch.float64)
    latents = layer.norm_latents(layer.latents)
    keys, values = (latents @ layer.key_value.weight.T).split(12, dim=1)
    wanted = torch.empty_like(states)
    for b in range(3):
        for t in range(4):
            h = states[b, t]
            query = layer.query.weight @ layer.norm_states(h)
            read = []
            for head in (slice(0, 6), slice(6, 12)):
                weights = torch.softmax(keys[:, head] @ query[head] / sqrt(6), dim=0)
                read.append(weights @ values[:, head])
            u = h + layer.out.weight @ torch.cat(read)
            value, gate = layer.up(layer.norm_inner(u)).split(32)
            wanted[b, t] = u + layer.down(value * torch.nn.functional.gelu(gate))
    torch.testing.assert_close(layer(states), wanted)


def test_every_part_is_trained(make_encoder):
    encoder = make_encoder(memory_tokens=0, attention="bidirectional", pooling=POOLING, lora={})
    before, states = encoder.encode(SENTENCES), {name: p.clone() for name, p in encoder.head.state_dict().items()}
    objective = build.objective({"type": "contrastive"})
    objective.setup(encoder.train())
    rows = [{"query": a, "positive": b} for a, b in zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], strict=True)]
    optimizer = torch.optim.AdamW([p for p in encoder.parameters() if p.requires_grad], lr=1e-2)
    objective(encoder, objective.collate(rows, encoder))["loss"].backward()
    optimizer.step()
    after = encoder.eval().encode(SENTENCES)
    assert all(not torch.equal(states[name], p) for name, p in encoder.head.state_dict().items())
    assert np.abs(after - before).max() > 1e-4


def test_a_folder_holds_it(model_folder, tmp_path):
    encoder = Encoder.from_pretrained(model_folder("llama"), pooling=POOLING)
    with torch.no_grad():
        encoder.head.latents.add_(1.0)
    hashed = encoder.weights_hash()
    encoder.save_pretrained(tmp_path / "saved", verify="full")
    again = Encoder.from_pretrained(tmp_path / "saved")
    assert again.pooling == POOLING and again.weights_hash() == hashed
    np.testing.assert_array_equal(again.encode(SENTENCES), encoder.encode(SENTENCES))
    with torch.no_grad():
        again.head.latents.add_(1.0)
    assert again.weights_hash() != hashed
    with pytest.raises(ValueError, match="latent attention before they are pooled, for which there is no stock"):
        export_encoder(again, tmp_path / "stock")
