"""A stock folder has one length: an encoder with two is exported only with one that is named."""

from __future__ import annotations

import json
import sys
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from embrew.encoder import Encoder
from embrew.export import fresh_process
from embrew.export.exporting import export_encoder
from embrew.storage.card import model_card
from embrew.text.template import Template
from tests.conftest import by_default
from tests.hard_texts import HARD_TEXTS

TWO = {"query": 24, "document": 48}
BEYOND = " ".join(f"word{i} and {i * i}" for i in range(60))
TEXTS = [*HARD_TEXTS, BEYOND[:60], BEYOND]  # within, between and beyond the two limits


@pytest.fixture
def encoder(make_encoder) -> Encoder:
    return make_encoder(lora={}, max_length=TWO, prompts={"query": "find: ", "document": "keep: ", "sts": "same: "})


def test_two_lengths_are_refused(encoder, tmp_path):
    for verify in ("full", "off"):
        with pytest.raises(ValueError, match=r"query texts at 24 tokens and document texts at 48.*--max-length N"):
            export_encoder(encoder, tmp_path / "stock", verify=verify)
    assert not (tmp_path / "stock").exists()
    export_encoder(encoder.with_settings(max_length=48), tmp_path / "stock", verify="off")


@pytest.mark.parametrize("length", by_default([24], [24, 48, 60]))
def test_both_sides_get_the_length_that_is_named(length, encoder, tmp_path):
    export_encoder(encoder, tmp_path / "stock", verify="off", max_length=length)
    stock = SentenceTransformer(str(tmp_path / "stock"), device="cpu")
    live = encoder.with_settings(max_length=length)
    for method in ("encode_query", "encode_document", "encode"):
        difference = np.abs(getattr(stock, method)(TEXTS) - getattr(live, method)(TEXTS)).max()
        assert difference < 1e-5, (method, difference)
    changed = np.abs(stock.encode_query([BEYOND]) - encoder.encode_query([BEYOND])).max() > 1e-3
    assert changed == (length != TWO["query"]), "a long query is cut elsewhere, as the card says"
    parity = json.loads((tmp_path / "stock" / "parity.json").read_text())
    assert (parity["max_length"], parity["exported_from"]["max_length"]) == (length, TWO)
    found = {case["method"]: max(len(text["ids"]) for text in case["texts"]) for case in parity["cases"]}
    assert found == dict.fromkeys(("encode_query", "encode_document", "encode"), length), "beyond the limit, each"
    assert {case["max_length"] for case in parity["cases"]} == {length}
    card = (tmp_path / "stock" / "README.md").read_text()
    assert (
        f"- longest text in tokens: {length} for any text, with its prompt (the encoder that was exported: 24" in card
    )


def in_this_process(command: list[str], **_: Any) -> CompletedProcess[str]:
    """What the fresh process runs, without its seconds of start."""
    before, sys.argv = sys.argv, [command[1], *command[3:]]
    try:
        exec(command[2], {})
    finally:
        sys.argv = before
    return CompletedProcess(command, 0, "", "")


def test_a_baked_prompt_is_compared_with_the_encoder_that_has_it(make_encoder, tmp_path, monkeypatch):
    """The reference is what `encode` gives with that prompt, before anything was rewritten for the export."""
    monkeypatch.setattr(fresh_process.subprocess, "run", in_this_process)
    settings = {"template": "{text} {instruction}", "memory_tokens": 0, "pooling": "last", "attention": "causal"}
    encoder = make_encoder(prompts={"query": "means:"}, max_length=TWO, **settings)
    export_encoder(encoder, tmp_path / "stock", prompt_name="query", max_length=24)
    with_words = Template.with_words
    monkeypatch.setattr(Template, "with_words", lambda template, words: with_words(template, ""))
    with pytest.raises(RuntimeError, match="gives other vectors"):
        export_encoder(encoder, tmp_path / "other", prompt_name="query", max_length=24)


def test_the_card_of_a_saved_encoder_names_the_option(encoder):
    assert "`embrew export PATH DIR --max-length 48`" in model_card(encoder)
    assert "`embrew export PATH DIR`" in model_card(encoder.with_settings(max_length=48))
