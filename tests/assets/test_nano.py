"""The backbone in the wheel: it opens without a network, says of itself what is true, and takes any text."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from embrew import opening
from embrew.storage.base_model import ASSETS
from tests.characters import CHARACTERS

NANO = ASSETS["nano"]
TOKENIZER = AutoTokenizer.from_pretrained(NANO)


@settings(max_examples=300, deadline=None)
@given(st.text(CHARACTERS, max_size=80))
@example("")
@example("naïve café \u202e 日本語 \U0001f9d1\u200d\U0001f680 \x00\t\r\n")
@example("2026 is 1 + 2,025")
def test_any_text_comes_back_from_its_tokens(text):
    ids = TOKENIZER(text, split_special_tokens=True).input_ids
    assert ids[0] == TOKENIZER.bos_token_id
    decoded = TOKENIZER.decode(ids[1:], clean_up_tokenization_spaces=False)
    # once more, since the tokenizer and Python may have tables of different versions of Unicode
    assert unicodedata.normalize("NFC", decoded) == unicodedata.normalize("NFC", text)


def test_special_tokens_and_size():
    assert (TOKENIZER.bos_token, TOKENIZER.eos_token, TOKENIZER.pad_token) == ("<s>", "</s>", "<pad>")
    assert (TOKENIZER.bos_token_id, TOKENIZER.eos_token_id, TOKENIZER.pad_token_id) == (0, 1, 2)
    assert len(TOKENIZER) == 8192
    assert len(TOKENIZER("1234", add_special_tokens=False).input_ids) == 4  # digits one by one
    assert (NANO / "model.safetensors").stat().st_size <= 16e6
    config = json.loads((NANO / "config.json").read_text())
    assert (config["model_type"], config["max_position_embeddings"], config["dtype"]) == ("llama", 1024, "bfloat16")
    assert config["tie_word_embeddings"]


def test_the_card_is_of_these_weights():
    with open(NANO / "model.safetensors", "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    card = (NANO / "README.md").read_text()
    assert sha256[:8] in card
    assert "bits per byte" in card.lower()
    assert all(word in card for word in ("CC BY-SA 3.0", "CC BY 2.5", "public domain"))


def test_it_opens_without_asking_anyone(monkeypatch):
    def asked(*args, **kwargs):
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr("embrew.stock.file_of", asked)
    assert opening.open_model("nano", pooling="mean").describe()["base"]["name"] == "nano"


def test_it_has_learned_words():
    model = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32).eval()

    def nats(text: str) -> float:
        ids = TOKENIZER(text, return_tensors="pt").input_ids
        with torch.no_grad():
            return float(model(input_ids=ids, labels=ids).loss)

    assert nats("The city lies on the river and has a long history.") < 5
    assert nats("river long the lies a history has on The city and the.") > nats(
        "The city lies on the river and has a long history."
    )
    assert Path(NANO).name == "nano"


@pytest.mark.slow
def test_bits_per_byte_are_those_of_the_card():
    import sys

    from tests.conftest import data_folder

    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
    import pretrain_nano
    from nano_corpus import validation_texts

    model = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32).eval()
    card = (NANO / "README.md").read_text()
    for name in pretrain_nano.SETS:
        documents = pretrain_nano.cut_documents(validation_texts(data_folder(), name), TOKENIZER)
        _, bits = pretrain_nano.validation_loss(model, documents)
        assert f"{bits:.3f}" in card
