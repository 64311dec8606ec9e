"""BERT-type encoders are backbones too: read, cut, trained, saved and exported as causal LMs are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.recipe import build
from embrew.settings.encoder import Pooling
from tests.conftest import ENCODER_FAMILIES, SENTENCES, by_default

TEXTS = [*SENTENCES, "short", ""]
families = pytest.mark.parametrize("family", ENCODER_FAMILIES)


def opened(folder: Path, **settings: Any) -> Encoder:
    return Encoder.from_pretrained(folder, **{"max_length": 64, **settings})


def by_hand(folder: Path, pooling: str) -> np.ndarray:
    """Transformers alone: one padded batch, mean over the mask or the first state, unit length."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        states = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    mask = batch.attention_mask[..., None]
    pooled = states[:, 0] if pooling == "cls" else (states * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(pooled, dim=-1).numpy()


@families
@pytest.mark.parametrize("pooling", by_default(["cls"], ["cls", "mean"]))
def test_vectors_are_those_of_the_plain_model(family, pooling, encoder_folder):
    encoder = opened(encoder_folder(family), pooling=pooling)
    assert encoder.backbone.is_bert_type and encoder.attention.mode == "bidirectional"
    np.testing.assert_allclose(encoder.encode(TEXTS), by_hand(encoder_folder(family), pooling), atol=2e-6)


@pytest.mark.parametrize("family", by_default(["bert", "modernbert"], ENCODER_FAMILIES))
def test_every_layer_is_the_cut_model(family, encoder_folder):
    """In BERT also the hidden state of that number; ModernBERT has a final norm, as causal LMs do."""
    encoder = opened(encoder_folder(family), pooling="cls")
    tokens = encoder.tokenize(SENTENCES)
    with torch.no_grad():
        together = encoder.layer_embeddings(tokens)
        apart = torch.stack([encoder(tokens, num_layers=i + 1) for i in range(3)])
        model = AutoModel.from_pretrained(encoder_folder(family)).eval()
        hidden = model(tokens.input_ids, attention_mask=tokens.attention_mask, output_hidden_states=True).hidden_states
    assert encoder.backbone.num_layers == 3
    torch.testing.assert_close(together, apart, rtol=0, atol=2e-6)
    if family != "modernbert":
        torch.testing.assert_close(together, torch.stack([h[:, 0] for h in hidden[1:]]), rtol=0, atol=2e-6)


QUICK = {("bert", False), ("modernbert", True)}


@pytest.mark.parametrize(
    ("family", "lora"),
    [
        pytest.param(
            family,
            lora,
            marks=() if (family, lora) in QUICK else pytest.mark.slow,
            id=f"{family}-{'lora' if lora else 'full'}",
        )
        for family in ENCODER_FAMILIES
        for lora in (True, False)
    ],
)
def test_trained_saved_opened_exported(family, lora, encoder_folder, tmp_path):
    encoder = opened(encoder_folder(family), pooling="mean")
    before = encoder.encode(TEXTS)
    if lora:
        encoder.backbone.add_lora({"r": 4, "lora_dropout": 0.0})
    else:
        encoder.backbone.train_all()
    objective = build.objective({"type": "contrastive"})
    objective.setup(encoder)
    rows = [{"query": a, "positive": b} for a, b in zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], strict=True)]
    batch = objective.collate(rows, encoder)
    optimizer = torch.optim.AdamW([p for p in encoder.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        objective(encoder, batch)["loss"].backward()
        assert lora or all(p.grad is not None for p in encoder.parameters() if p.requires_grad)
        optimizer.step()
    encoder.eval()
    encoder.steps = 3
    after = encoder.encode(TEXTS)
    assert np.abs(after - before).max() > 1e-3
    encoder.save_pretrained(tmp_path / "trained")
    np.testing.assert_allclose(Encoder.from_pretrained(tmp_path / "trained").encode(TEXTS), after, atol=2e-6)
    export_encoder(encoder, tmp_path / "stock", verify="off")
    stock = SentenceTransformer(str(tmp_path / "stock"), device="cpu")
    np.testing.assert_allclose(stock.encode(TEXTS, show_progress_bar=False), after, atol=1e-5)


def test_roberta_counts_positions_from_its_padding(encoder_folder):
    assert opened(encoder_folder("bert"), max_length=130).encode("long " * 300).shape == (32,)
    assert opened(encoder_folder("roberta"), max_length=129).encode("long " * 300).shape == (32,)
    with pytest.raises(ValueError, match="RobertaModel has positions for 129 tokens"):
        opened(encoder_folder("roberta"), max_length=130)


def test_what_an_encoder_cannot_be_or_do(encoder_folder):
    with pytest.raises(ValueError, match="BertModel is a BERT-type encoder.*set attention: bidirectional"):
        opened(encoder_folder("bert"), attention="causal")
    encoder = opened(encoder_folder("bert"), pooling="cls")
    for settings in ({"type": "compression"}, {"type": "mntp"}):
        with pytest.raises(ValueError, match="BertModel is a BERT-type encoder without"):
            build.objective(settings).setup(encoder)
    with pytest.raises(ValueError, match="pools over 'all' only: set over: all"):
        Pooling("cls", "text")
