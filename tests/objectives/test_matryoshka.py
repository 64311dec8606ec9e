"""Nested losses: sums of the base loss on cut vectors; Sentence-Transformers' value; caching; refusals."""

import copy

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss
from torch import nn

from embrew.methods import Contrastive, Matryoshka
from embrew.methods.embedding import text_keys
from embrew.recipe import build
from embrew.training.step import MiniBatchSize, TrainStep
from tests.objectives.cases import rows_for

NESTED = {"type": "matryoshka", "base": {"type": "contrastive"}, "dims": [32, 8, 4], "weights": [1.0, 0.5, 2.0]}
NESTED_2D = {"type": "matryoshka_2d", "base": {"type": "contrastive"}, "dims": [32, 8, 4]}


def test_the_weighted_sum_of_the_base_loss_on_leading_dimensions():
    generator = torch.Generator().manual_seed(0)
    embeddings = {role: torch.randn(5, 32, generator=generator) for role in ("query", "document")}
    batch = {f"{role}_keys": text_keys([f"{role} {i}" for i in range(5)]) for role in ("query", "document")}
    objective = build.objective(NESTED)
    parts = objective.loss(embeddings, batch)
    expected = 0.0
    for m, weight in ((32, 1.0), (8, 0.5), (4, 2.0)):
        value = Contrastive().loss({role: vectors[:, :m] for role, vectors in embeddings.items()}, batch)["loss"]
        assert parts[f"loss_{m}"] == value
        expected += weight * float(value)
    assert float(parts["loss"]) == pytest.approx(expected, rel=1e-6)


def test_value_and_gradient_of_sentence_transformers():
    class Rows(nn.Module):
        """A "model" whose embeddings are rows of a matrix."""

        def __init__(self):
            super().__init__()
            generator = torch.Generator().manual_seed(1)
            self.weight = nn.Parameter(torch.randn(8, 16, generator=generator, dtype=torch.float64))

        def forward(self, features):
            return {"sentence_embedding": self.weight[features["rows"]]}

    model = SentenceTransformer(modules=[Rows()])
    model.get_embedding_dimension = lambda: 16
    peer = MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), [16, 8, 2], [1.0, 0.5, 0.25])
    columns = [{"rows": torch.arange(4)}, {"rows": torch.arange(4, 8)}]
    expected = peer(columns, torch.zeros(4))
    (wanted,) = torch.autograd.grad(expected, model[0].weight)
    ours = Matryoshka(base=Contrastive(mask_same_text=False), dims=[16, 8, 2], weights=[1.0, 0.5, 0.25])
    embeddings = {"query": model[0].weight[:4], "document": model[0].weight[4:]}
    keys = {f"{role}_keys": torch.arange(4) for role in ("query", "document")}
    value = ours.loss(embeddings, keys)["loss"]
    (found,) = torch.autograd.grad(value, model[0].weight)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("settings", [NESTED, NESTED_2D], ids=["one", "two"])
def test_it_can_be_cached(settings, make_encoder):
    """Sentence-Transformers needs a decorator for this, and refuses it for layers; here no loss sees the model."""
    encoder, objective = make_encoder(lora={"lora_dropout": 0.0}), build.objective(settings)
    objective.setup(encoder)
    batch = objective.collate(rows_for(objective), encoder)
    gradients = []
    for chunks in (None, MiniBatchSize(rows=2)):
        step = TrainStep(encoder.train(), objective, chunks)
        step.zero_grad(set_to_none=True)
        step(**batch, progress=torch.tensor(0.5))["loss"].backward()
        gradients.append({name: p.grad for name, p in step.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    largest = max(grad.abs().max() for grad in gradients[0].values())
    for name, grad in gradients[0].items():
        assert (grad - gradients[1][name]).abs().max() <= 5e-6 * largest, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": []}, r"dims=\[\]; allowed: at least 1 item"),
        ({"dims": [8, 8], "weights": None}, r"dims=\[8, 8\]; give different"),
        ({"dims": [64], "weights": None}, r"dims=\[64\]; give different numbers from 1 to 32"),
        ({"weights": [1.0]}, r"weights=\[1.0\] for dims=\[32, 8, 4\]; give one weight per dimension"),
    ],
)
def test_dimensions_that_do_not_fit(make_encoder, change, message):
    with pytest.raises(ValueError, match=message):
        build.objective({**NESTED, **change}).setup(make_encoder(lora={}))


def test_two_dimensions_as_sentence_transformers_has_them(tmp_path, tokenizer, monkeypatch):
    """On a BERT, where a layer's states are the cut model's (in an LLM the peer leaves out the final norm).

    The peer counts the input embeddings as a layer, and draws none but the widths it is given; told which layer, value
    and gradient are the same.
    """
    from sentence_transformers.sentence_transformer.losses import Matryoshka2dLoss, adaptive_layer
    from transformers import AutoModelForMaskedLM

    from embrew.encoder import Encoder
    from tests.conftest import ENCODER_CONFIGS

    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(copy.deepcopy(ENCODER_CONFIGS["bert"])).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    encoder = Encoder.from_pretrained(tmp_path, max_length=64, pooling="mean")
    objective = build.objective(
        {**NESTED_2D, "base": {"type": "contrastive", "mask_same_text": False}, "dims_per_step": None, "kl_weight": 0.7}
    )
    objective.setup(encoder)
    encoder.backbone.train_all()
    batch = objective.collate([{**row, "negatives": []} for row in rows_for(objective)], encoder)
    (layer,), _ = objective._draw(3, batch)
    assert layer < 2
    value = objective(encoder, batch)["loss"]
    weights = dict(encoder.backbone.causal_lm.named_parameters())
    weights = {name: p for name, p in weights.items() if p.requires_grad}
    found = dict(zip(weights, torch.autograd.grad(value, list(weights.values()), allow_unused=True), strict=True))

    stock = SentenceTransformer(str(tmp_path), device="cpu").eval()
    monkeypatch.setattr(adaptive_layer.random, "sample", lambda layers, count: [layers[layer + 1]])
    peer = Matryoshka2dLoss(
        stock,
        MultipleNegativesRankingLoss(stock),
        [32, 8, 4],
        n_dims_per_step=-1,
        kl_div_weight=0.7,
    )
    features = [
        {"input_ids": batch[role].input_ids, "attention_mask": batch[role].attention_mask}
        for role in ("query", "document")
    ]
    expected = peer(features, torch.zeros(5))
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)
    expected.backward()
    theirs = {name: p.grad for name, p in stock[0].auto_model.named_parameters()}
    for name, grad in found.items():
        if grad is not None:
            torch.testing.assert_close(grad, theirs[name], rtol=1e-3, atol=1e-5)


def test_what_is_drawn_follows_from_how_far_the_stage_is(make_encoder):
    """Every layer and every width comes by; the widest always; the same again at the same step."""
    objective = build.objective({**NESTED_2D, "dims_per_step": 1})
    drawn = [objective._draw(5, {"progress": torch.tensor(i / 100)}) for i in range(100)]
    assert drawn == [objective._draw(5, {"progress": torch.tensor(i / 100)}) for i in range(100)]
    assert {layer for layers, _ in drawn for layer in layers} == {0, 1, 2, 3}
    assert {tuple(dims) for _, dims in drawn} == {(32, 8), (32, 4)}
