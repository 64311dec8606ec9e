"""An empty text in an export has the encoder's vector; where it has no tokens there, card and log say so."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from tests.conftest import by_default
from tests.hard_texts import HARD_TEXTS
from tests.journeys import tiny_lm
from tests.tokenizer_kinds import KINDS

CASES: list[tuple[str, dict[str, Any], bool]] = [
    ("metaspace", {"pooling": "mean"}, True),  # its tokenizer puts BOS first
    ("gpt-neox", {"pooling": "mean"}, False),
    ("gpt-neox", {"pooling": "last", "template": "{instruction}{text}{eos}"}, True),
    ("gpt-neox", {"pooling": "mean", "template": "Text: {text}"}, True),
    ("gpt-neox", {"pooling": "mean", "prompts": {"query": "find: ", "document": ""}}, False),
]


@pytest.mark.parametrize(("kind", "settings", "has_tokens"), by_default([CASES[0], CASES[4]], CASES))
def test_an_empty_text(kind, settings, has_tokens, tmp_path, caplog):
    family, tokenizer = KINDS[kind]
    encoder = Encoder.from_pretrained(
        tiny_lm(family, tokenizer(), tmp_path / "lm"), device="cpu", max_length=32, **settings
    )
    with caplog.at_level(logging.WARNING):
        export_encoder(encoder, tmp_path / "stock", verify="off")
    card = (tmp_path / "stock" / "README.md").read_text()
    assert ("An empty text has no tokens here" in card) == ("an empty text has no tokens" in caplog.text)
    assert ("An empty text has no tokens here" not in card) == has_tokens
    stock = SentenceTransformer(str(tmp_path / "stock"), device="cpu")
    difference = np.abs(stock.encode_document(list(HARD_TEXTS)) - encoder.encode_document(list(HARD_TEXTS))).max(1)
    assert [i for i, d in enumerate(difference) if d > 1e-5] == ([] if has_tokens else [HARD_TEXTS.index("")])
    cases = json.loads((tmp_path / "stock" / "parity.json").read_text())["cases"]
    compared = {case["prompt"]: any(not text["text"] for text in case["texts"]) for case in cases}
    assert compared == {prompt: has_tokens or bool(prompt) for prompt in compared}, "compared wherever it has tokens"
