"""ESE: the paper's sums in a loop over layers, presets, ablations, which weights get a gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from embrew.losses import compression_target
from embrew.methods.embedding import text_keys
from embrew.recipe import build
from tests.conftest import SENTENCES
from tests.objectives.cases import rows_for

SETTINGS = {"type": "espresso", "base": {"type": "contrastive", "temperature": 0.2}, "compression_size": 8}
LAYERS, ROWS, WIDTH, K = 5, 6, 32, 8


def case(layers: int = LAYERS, seed: int = 0):
    """Embeddings of random layers, and the batch they would come from."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = {
        role: torch.randn(layers, ROWS, WIDTH, generator=generator).requires_grad_() for role in ("query", "document")
    }
    keys = {f"{role}_keys": text_keys([f"{role} {i}" for i in range(ROWS)]) for role in ("query", "document")}
    return embeddings, keys


def infonce(queries, documents):
    scores = functional.normalize(queries, dim=-1) @ functional.normalize(documents, dim=-1).T / 0.2
    return functional.cross_entropy(scores, torch.arange(ROWS))


def align(x):
    """One layer's pull, as printed, with the authors' factor t = 1 and mean over texts."""
    a = torch.softmax(x.T @ x / math.sqrt(WIDTH), dim=-1).double()
    u, s, _ = torch.linalg.svd(a)
    columns = u[:, :K] * s[:K]
    columns = columns * columns.gather(0, columns.abs().argmax(0, keepdim=True)).sign()
    target = (x.double() @ columns).float().detach()
    kl = functional.kl_div(x[:, :K].log_softmax(-1), target.softmax(-1), reduction="batchmean")
    return (x[:, :K] - target).square().mean() + kl


def by_hand(embeddings, preset, *, layers="log", alpha=1.0, beta=1.0):
    weights = [1 / (1 + math.log(i + 1)) if layers == "log" else 1.0 for i in range(LAYERS)]
    shallow = 1.0 if preset == "paper" else 1.0 / (LAYERS - 1)
    total = 0.0
    for i in range(LAYERS):
        q, d = embeddings["query"][i], embeddings["document"][i]
        scale = 1.0 if i == LAYERS - 1 else weights[i] * shallow
        total = total + scale * (alpha * infonce(q[:, :K], d[:, :K]) + beta * align(torch.cat([q, d])))
    if preset != "paper":
        total = total + alpha * infonce(embeddings["query"][-1], embeddings["document"][-1])
    return total


@pytest.mark.parametrize("svd", ["auto", "exact"])
@pytest.mark.parametrize("layers", ["log", "none"])
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_against_the_sums_of_the_paper(preset, layers, svd):
    embeddings, batch = case()
    objective = build.objective(
        {**SETTINGS, "preset": preset, "layers": layers, "svd": svd, "express_weight": 0.7, "compress_weight": 1.3}
    )
    value = objective.loss(embeddings, batch)["loss"]
    wanted = by_hand(embeddings, preset, layers=layers, alpha=0.7, beta=1.3)
    torch.testing.assert_close(value, wanted, rtol=1e-4, atol=0)
    leaves = list(embeddings.values())
    found, expected = torch.autograd.grad(value, leaves), torch.autograd.grad(wanted, leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("compression", ["direct", "max_k"])
def test_ablations_of_the_target(compression):
    embeddings, batch = case()
    parts = build.objective({**SETTINGS, "preset": "paper", "compression": compression}).loss(embeddings, batch)
    wanted = 0.0
    for i in range(LAYERS):
        x = torch.cat([embeddings["query"][i], embeddings["document"][i]]).detach()
        target = compression_target(x, K, compression=compression)
        kl = functional.kl_div(x[:, :K].log_softmax(-1), target.softmax(-1), reduction="batchmean")
        weight = 1.0 if i == LAYERS - 1 else 1 / (1 + math.log(i + 1))
        wanted += weight * float((x[:, :K] - target).square().mean() + kl)
    assert parts["compress"].item() == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_official_layers_are_those_of_the_public_code(family, make_encoder):
    """The library's hidden states from the embedding layer on, without the last but one; the last one as it is."""
    encoder = make_encoder(family, memory_tokens=0, attention="bidirectional", pooling="mean")
    tokens = encoder.tokenize(SENTENCES)
    official = build.objective({**SETTINGS, "preset": "official"})
    with torch.no_grad():
        found = official.inputs.embed(encoder, tokens)
        states = encoder.backbone.raw_states(tokens, encoder.attention)
        last = encoder(tokens)
        own = build.objective(SETTINGS).inputs.embed(encoder, tokens)
        library = encoder.backbone.inner(
            inputs_embeds=encoder.backbone.embed(tokens),
            attention_mask=encoder.attention.mask(tokens, encoder.backbone.inner.config, encoder.backbone.dtype),
            output_hidden_states=True,
        ).hidden_states
    for one, other in zip(states, library, strict=True):
        torch.testing.assert_close(one[tokens.attention_mask.bool()], other[tokens.attention_mask.bool()])
    layers = encoder.backbone.num_layers
    assert len(states) == layers + 1 and len(found) == layers == len(own)
    for i in range(layers - 1):
        torch.testing.assert_close(found[i], encoder.pool(states[i], tokens))
    torch.testing.assert_close(found[-1], last)
    torch.testing.assert_close(own[-1], last)
    assert (found[0] - own[0]).abs().max() > 1e-3


def test_learned_weights_begin_as_the_fixed_ones_and_are_trained(make_encoder):
    from embrew.training.step import MiniBatchSize, TrainStep

    encoder = make_encoder(lora={"lora_dropout": 0.0})
    objective = build.objective({**SETTINGS, "layers": "learned"})
    objective.setup(encoder)
    batch = objective.collate(rows_for(objective), encoder)
    embeddings, keys = case()
    theta = {"layer_weights": torch.tensor([1 / (1 + math.log(i)) for i in range(1, LAYERS)]).log().requires_grad_()}
    weights = objective._weights(LAYERS, {"learned": theta})
    fixed = torch.tensor([1 / (1 + math.log(i)) for i in range(1, LAYERS)])
    torch.testing.assert_close(weights[:-1], fixed * (LAYERS - 1) / fixed.sum())
    value = objective.loss(embeddings, {**keys, "learned": theta})["loss"]
    assert torch.autograd.grad(value, theta["layer_weights"])[0].abs().max() > 0
    gradients = []
    for chunks in (None, MiniBatchSize(rows=2)):
        step = TrainStep(encoder.train(), objective, chunks)
        assert [name for name in step.trainable() if "learned" in name] == ["learned.layer_weights"]
        step.zero_grad(set_to_none=True)
        step(**batch)["loss"].backward()
        gradients.append({name: p.grad for name, p in step.trainable().items()})
    for name, grad in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compression_size": 33}, "compression_size=33 of 32 dimensions"),
        ({"base": {"type": "angle", "rows": "pairs"}, "compression_size": 7}, "give an even number, such as 8"),
        ({"express_weight": 0.0, "compress_weight": 0.0}, "train nothing; give one of them a weight"),
        ({"per_text": True, "compression": "max_k"}, "per_text goes with compression: dependencies"),
    ],
)
def test_what_cannot_be(change, message, make_encoder):
    with pytest.raises(ValueError, match=message):
        build.objective({**SETTINGS, **change}).setup(make_encoder())
