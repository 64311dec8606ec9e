"""What other software reads in a stock folder: names in the post-processor, limits, the direction of attention."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.settings.encoder import Pooling
from tests.conftest import SENTENCES
from tests.journeys import tiny_lm

TEXTS = [*SENTENCES, "a", "ends with </s>", "long " * 200]
LAST = {"memory_tokens": 0, "pooling": "last", "template": "{instruction}{text}{eos}", "attention": "causal"}


def exported(encoder: Encoder, folder: Path) -> Path:
    export_encoder(encoder, folder, verify="off")
    return folder


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("settings", "added"),
    [
        pytest.param(LAST, ["<s>", None, "</s>"], marks=pytest.mark.slow),
        pytest.param({"memory_tokens": 2}, ["<s>", None, "<|memory_0|>", "<|memory_1|>"], marks=pytest.mark.slow),
        ({"memory_tokens": 1, "template": "{text}: {memory}"}, ["<s>", None, ":", "Ġ", "<|memory_0|>"]),
        ({**LAST, "template": "{text} a a{eos}", "words_after": "separate"}, ["<s>", None, "Ġa", "Ġa", "</s>"]),
    ],
)
def test_added_tokens_have_their_own_names(settings, added, make_encoder, tmp_path):
    """Each entry of the post-processor is one token, by its name in the vocabulary, also where that is a colon."""
    folder = exported(make_encoder(max_length=64, **settings), tmp_path / "stock")
    processor = read(folder / "tokenizer.json")["post_processor"]
    names = [piece.get("SpecialToken", {}).get("id") for piece in processor["single"]]
    assert names == added
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, entry in processor["special_tokens"].items():
        assert entry == {"id": name, "ids": [tokenizer.convert_tokens_to_ids(name)], "tokens": [name]}


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_limits_and_the_direction_of_attention(attention, make_encoder, tmp_path):
    folder = exported(make_encoder(memory_tokens=0, attention=attention, max_length=48), tmp_path / "stock")
    settings = read(folder / "sentence_bert_config.json")
    assert (settings["max_seq_length"], settings["do_lower_case"]) == (48, False)
    config = read(folder / "config.json")
    assert config["is_causal"] is (attention == "causal")
    assert config["use_bidirectional_attention"] is (attention == "bidirectional")
    assert SentenceTransformer(str(folder), device="cpu").max_seq_length == 48


def test_gemma3_keeps_its_own_flag(make_encoder, tmp_path):
    """There the flag would change the sliding window, and so the vectors."""
    folder = exported(make_encoder("gemma3", memory_tokens=0, max_length=48), tmp_path / "stock")
    config = read(folder / "config.json")
    assert (config["is_causal"], config["use_bidirectional_attention"], config["sliding_window"]) == (False, False, 8)


def test_a_mean_over_texts_without_added_tokens_is_a_mean_over_all(tmp_path):
    """Qwen's tokenizer adds nothing: one pooling module, in the place where servers look for it."""
    from tests.tokenizer_kinds import KINDS

    family, tokenizer = next(kind for kind in KINDS.values() if kind[0] == "qwen2")
    lm = tiny_lm(family, tokenizer(), tmp_path / "lm")
    encoder = Encoder.from_pretrained(lm, device="cpu", pooling=Pooling("mean", "text"), max_length=32)
    folder = exported(encoder, tmp_path / "stock")
    assert read(folder / "1_Pooling" / "config.json")["pooling_mode"] == "mean"
    assert read(folder / "sentence_bert_config.json")["unpad_inputs"] is False, "an empty text has no tokens"
    stock = SentenceTransformer(str(folder), device="cpu")
    assert np.abs(stock.encode(TEXTS, batch_size=3) - encoder.encode(TEXTS)).max() < 1e-5


def test_where_texts_must_be_padded(make_encoder, tmp_path):
    """Not for pooling of every token or of the last one, which need no mask."""
    memory = exported(make_encoder(max_length=64), tmp_path / "memory")
    assert read(memory / "sentence_bert_config.json")["unpad_inputs"] is False
