"""Masked next-token prediction against the library's own forward pass, and what is masked."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from embrew.methods import MaskedNextToken
from embrew.methods.base import text_ids
from tests.conftest import SENTENCES

ROWS = [{"text": text} for text in SENTENCES]


@pytest.mark.parametrize("family", ["llama", "llama-tied"])
def test_the_loss_of_the_whole_model(family, make_encoder):
    """Logits of every position under full attention, shifted by one, cross entropy at the chosen ones."""
    encoder = make_encoder(family, memory_tokens=0, pooling="mean", lora={"lora_dropout": 0.0})
    objective = MaskedNextToken(mask_probability=0.3)
    objective.setup(encoder)
    batch = objective.collate(ROWS, encoder, seed=4)
    tokens, labels = batch["text"], batch["labels"]
    real = tokens.attention_mask.bool()
    everywhere = real[:, None, None, :].expand(-1, 1, real.shape[1], -1)
    logits = encoder.backbone.causal_lm(tokens.input_ids, attention_mask=everywhere).logits.float()
    expected = cross_entropy(logits[labels != -100], labels[labels != -100])
    assert objective(encoder, batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_what_is_chosen_and_what_is_shown(make_encoder):
    encoder = make_encoder(memory_tokens=0, pooling="mean", max_length=64)
    rows = [{"text": f"{a} {b} {i}"} for i, a in enumerate(SENTENCES * 8) for b in SENTENCES]
    originals = text_ids([row["text"] for row in rows], encoder)
    objective = MaskedNextToken(mask_probability=0.25)
    mask_id = objective._mask_id(encoder)
    chosen = masked = same = total = 0
    for row, ids in zip(rows, originals, strict=True):
        batch = objective.collate([row], encoder, seed=1)
        shown, labels = batch["text"].input_ids[0].tolist(), batch["labels"][0].tolist()
        ids = ids[: 64 - 1]
        assert len(shown) == len(labels) == 1 + len(ids)
        for t, (token, original) in enumerate(zip(shown[1:], ids, strict=True)):
            total += 1
            if labels[t] == -100:
                assert token == original, "what is not chosen stays"
            else:
                assert labels[t] == original
                chosen, masked, same = chosen + 1, masked + (token == mask_id), same + (token == original)
        assert labels[-1] == -100
    assert chosen / total == pytest.approx(0.25, abs=0.02)
    assert masked / chosen == pytest.approx(0.8, abs=0.03)
    assert same / chosen == pytest.approx(0.1, abs=0.02)


def test_only_the_mask_token_and_every_row_teaches(make_encoder):
    encoder = make_encoder(memory_tokens=0, pooling="mean")
    objective = MaskedNextToken(mask_probability=1e-9, replacement="mask")
    batch = objective.collate(ROWS, encoder)
    assert (batch["labels"] != -100).sum(1).tolist() == [1] * len(ROWS)
    again = objective.collate(ROWS, encoder)
    assert torch.equal(batch["text"].input_ids, again["text"].input_ids)
    other = objective.collate(ROWS, encoder, seed=1)
    assert not torch.equal(batch["text"].input_ids, other["text"].input_ids)


def test_without_bos_the_first_token_is_never_chosen(make_encoder, monkeypatch):
    encoder = make_encoder(memory_tokens=0, pooling="mean")
    monkeypatch.setattr(encoder.template, "bos_ids", [])
    batch = MaskedNextToken(mask_probability=1.0, replacement="mask").collate(ROWS, encoder)
    mask_id = MaskedNextToken()._mask_id(encoder)
    assert (batch["text"].input_ids[:, 0] != mask_id).all()
