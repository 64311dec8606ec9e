"""Demonstrations of the evidence's tasks reach the texts that are asked for with their instruction, and no others."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from embrew import Encoder
from embrew.modeling.prompting.contexts import Context
from embrew.modeling.settings.demonstrations import Demonstration, Demonstrations
from embrew.modeling.settings.pooling import Pooling


def test_by_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    shots_module = importlib.import_module("shots")
    settings = {"pooling": Pooling("last"), "attention": "causal", "demonstrations": Demonstrations()}
    encoder = Encoder.from_pretrained("nano", template="{instruction}{text}{eos}", **settings)
    shown = [Demonstration("What is rain?", "Water that falls.")]
    form, asked, other = "{instruction}: ", "Answer the question, please", "Name the topic"
    shots = shots_module.Shots(encoder, form, {asked: shown})
    texts = ["What is snow?", "Why is ice slippery?"]
    encoder.add_context("same", Context("Answer the question, please: ", tuple(shown)))
    for encode in ("encode", "encode_query"):
        got = getattr(shots, encode)(texts, prompt=asked)
        assert np.array_equal(got, getattr(encoder, encode)(texts, prompt_name="same"))
        plain = getattr(shots, encode)(texts, prompt=other)
        assert np.array_equal(plain, getattr(encoder, encode)(texts, prompt="Name the topic: "))
        assert abs(got - plain).max() > 1e-3
