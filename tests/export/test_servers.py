"""vLLM and Text Embeddings Inference, by the rules of their loaders: refused, or read as the encoder is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.export.fresh_process import verify_runtime
from embrew.runtimes.registry import RUNTIMES
from embrew.runtimes.runtime import RuntimeName
from embrew.runtimes.tei import read_as_tei
from embrew.runtimes.vllm import read_as_vllm
from embrew.settings.encoder import Pooling
from tests.conftest import SENTENCES, by_default

LAST = {"memory_tokens": 0, "pooling": "last", "template": "{instruction}{text}{eos}", "attention": "causal"}
ONE = {"memory_tokens": 1, "pooling": Pooling("last", "memory")}
MEAN = {"memory_tokens": 0, "pooling": "mean"}
PROMPTS = {"prompts": {"query": "find: ", "document": "keep: "}, "default_prompt_name": "document"}
SERVED = {
    "last": LAST,
    "one memory token": {**ONE, **PROMPTS},
    "mean, causal": {**MEAN, "attention": "causal"},
    "mean, bidirectional": MEAN,
    "words after the text": {**LAST, "template": '{text} means: "', "words_after": "separate"},
}


def test_every_runtime_can_be_asked_for():
    assert list(get_args(RuntimeName)) == list(RUNTIMES)


def exported(encoder: Encoder, folder: Path, **options: object) -> Path:
    export_encoder(encoder, folder, runtimes=("vllm", "tei"), verify="off", **options)  # type: ignore[arg-type]
    return folder


def verify(name: str, folder: Path) -> None:
    verify_runtime(RUNTIMES[name], folder, json.loads((folder / "parity.json").read_text()), "cpu")


@pytest.mark.parametrize("kind", by_default(["one memory token"], SERVED))
def test_read_as_the_encoder_is(kind, make_encoder, tmp_path):
    folder = exported(make_encoder("qwen3", lora={}, max_length=48, **SERVED[kind]), tmp_path / "stock")
    for name in ("vllm", "tei"):
        verify(name, folder)


def edit(path: Path, change: Callable[[dict | list], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def without_eos(tokenizer: dict) -> None:
    tokenizer["post_processor"]["single"].pop()


BOTH = ("vllm", "tei")
FAULTS = {
    "another pooling": (
        "1_Pooling/config.json",
        lambda c: c.update(pooling_mode="mean", pooling_mode_mean_tokens=True, pooling_mode_lasttoken=False),
        BOTH,
        "gives other vectors",
    ),
    "no pooling mode": (
        "1_Pooling/config.json",
        lambda c: c.update(pooling_mode="weightedmean", pooling_mode_lasttoken=False),
        BOTH,
        "would refuse the folder",
    ),
    "causal for vLLM": ("config.json", lambda c: c.update(is_causal=True), ("vllm",), "gives other vectors"),
    "causal for TEI": (
        "config.json",
        lambda c: c.update(use_bidirectional_attention=False),
        ("tei",),
        "gives other vectors",
    ),
    "another limit": (
        "sentence_bert_config.json",
        lambda c: c.update(max_seq_length=24),
        BOTH,
        "gives other token ids .*: 24 instead of",
    ),
    "no limit": ("sentence_bert_config.json", lambda c: c.pop("max_seq_length"), ("tei",), "missing field"),
    "lower case": (
        "sentence_bert_config.json",
        lambda c: c.update(do_lower_case=True),
        ("vllm",),
        "gives other token ids",
    ),
    "not normalised": ("modules.json", lambda m: m.pop(), ("vllm",), "gives other vectors"),
    "no memory token": ("tokenizer.json", without_eos, BOTH, "gives other token ids"),
    "another prompt": (
        "config_sentence_transformers.json",
        lambda c: c["prompts"].update(query="search: "),
        ("tei",),
        "gives other token ids",
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("servers") / "sound"


@pytest.mark.parametrize("fault", by_default(["another pooling"], FAULTS))
def test_a_planted_fault_is_found(fault, sound, make_encoder, tmp_path):
    if not sound.exists():
        exported(make_encoder("qwen3", lora={}, max_length=48, **ONE, **PROMPTS), sound)
    folder = Path(shutil.copytree(sound, tmp_path / "stock"))
    place, change, servers, message = FAULTS[fault]
    edit(folder / place, change)
    for name in servers:
        with pytest.raises(RuntimeError, match=message):
            verify(name, folder)


def test_another_projection_is_found(make_encoder, tmp_path):
    folder = exported(make_encoder("qwen3", max_length=48, **MEAN), tmp_path / "stock", truncate_dim=12)
    weights = load_file(folder / "2_Dense" / "model.safetensors")
    save_file({"linear.weight": weights["linear.weight"].flip(1).contiguous()}, folder / "2_Dense/model.safetensors")
    for name in BOTH:
        with pytest.raises(RuntimeError, match="gives other vectors"):
            verify(name, folder)


@pytest.mark.parametrize(
    ("family", "settings", "vllm", "tei"),
    [
        ("qwen3", {}, "its 3 memory tokens; train one memory token", "its 3 memory tokens; train one memory token"),
        (
            "qwen3",
            {"memory_tokens": 1, "template": "{text}{memory}{eos}", "pooling": Pooling("mean", "memory")},
            "a memory token that is not the last token",
            "a memory token that is not the last token",
        ),
        ("qwen3", {"memory_tokens": 0, "pooling": Pooling("mean", "text")}, "its text only", "its text only"),
        ("qwen3", {"memory_tokens": 0, "pooling": "weighted_mean"}, "no weighted mean", "no weighted mean"),
        ("qwen3", {"memory_tokens": 2, "pooling": Pooling("concat", "memory")}, "concatenates", "concatenates"),
        ("qwen3", {**MEAN, "normalize": False}, None, "normalises every vector unless a request says"),
        ("gemma3", MEAN, "it reads is_causal for llama, mistral, qwen2, qwen3, and not for gemma3", "sliding window"),
        ("gemma3", LAST, None, "sliding window of 8; export with --max-length 8"),
        ("gemma3", {**LAST, "max_length": 8}, None, "it has no gemma3_text"),
        ("mistral", LAST, None, "exceed the model's sliding window"),
        ("mistral", MEAN, "exceed the model's sliding window", "exceed the model's sliding window"),
        ("mistral", {**MEAN, "max_length": 8}, None, None),
        ("phi", LAST, "it runs phi by its general Transformers backend", "it has no phi"),
        ("gpt-neox", MEAN, "and not for gpt_neox; train attention: causal", "it has no gpt_neox"),
    ],
)
def test_what_is_refused(family, settings, vllm, tei, make_encoder):
    encoder = make_encoder(family, **{"max_length": 48, **settings})
    for check, words in ((RUNTIMES["vllm"].check, vllm), (RUNTIMES["tei"].check, tei)):
        if words is None:
            check(encoder)
        else:
            with pytest.raises(ValueError, match=words):
                check(encoder)


def test_causal_qwen3_is_exported_for_tei_with_a_warning(make_encoder, tmp_path, caplog):
    for settings, warned in (({**LAST}, True), (MEAN, False)):
        caplog.clear()
        folder = exported(make_encoder("qwen3", max_length=48, **settings), tmp_path / f"{warned}")
        words = "gives other vectors to texts of equal length in one batch"
        assert (words in caplog.text, words in (folder / "README.md").read_text()) == (warned, warned)


def test_scaled_rotary_positions_are_refused(make_encoder, monkeypatch):
    """Llama 3's scaling stands in rope_parameters, of which Text Embeddings Inference reads rope_theta only."""
    encoder = make_encoder(**LAST)
    config = encoder.backbone.inner.config
    monkeypatch.setattr(config, "rope_parameters", {**config.rope_parameters, "rope_type": "llama3"})
    RUNTIMES["vllm"].check(encoder)
    with pytest.raises(ValueError, match="without rope_type, and this model's is llama3"):
        RUNTIMES["tei"].check(encoder)


def test_servers_refuse_what_they_would_misread(make_encoder, tmp_path):
    """A folder for Sentence-Transformers holds the reason where each server fails on it, and only there."""
    export_encoder(make_encoder(max_length=48), tmp_path / "memory", verify="off")
    config = json.loads((tmp_path / "memory" / "config.json").read_text())
    assert config["architectures"][0].startswith("none: it pools over every token of a row")
    assert config["max_trained_positions"].startswith("none: it pools over every token of a row")
    for read in (read_as_vllm, read_as_tei):
        with pytest.raises(ValueError, match="none: it pools over every token"):
            read(tmp_path / "memory")
    config = json.loads((exported(make_encoder(max_length=48, **ONE), tmp_path / "one") / "config.json").read_text())
    assert config["architectures"] == ["LlamaModel"]
    assert "max_trained_positions" not in config


@pytest.mark.parametrize("added", ["{memory}", pytest.param("{memory}{eos}", marks=pytest.mark.slow)])
def test_the_mean_of_memory_states(added, make_encoder, tmp_path):
    """A client that gets the raw states of a text's tokens: those of its memory tokens, their mean, unit length."""
    encoder = make_encoder(lora={}, max_length=48, template="{text}" + added)
    export_encoder(encoder, tmp_path / "stock", verify="off")
    tokenizer, model = (kind.from_pretrained(tmp_path / "stock") for kind in (AutoTokenizer, AutoModel))
    last = 1 if "eos" in added else 0
    for text in [*SENTENCES, "long " * 200]:
        batch = tokenizer(text, truncation=True, max_length=48, return_tensors="pt")
        states = model(**batch).last_hidden_state[0]
        mean = states[len(states) - last - 3 : len(states) - last].mean(dim=0)
        vector = torch.nn.functional.normalize(mean, dim=0).detach().numpy()
        assert np.abs(vector - encoder.encode([text])[0]).max() < 1e-5
