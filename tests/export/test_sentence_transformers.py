"""The exported folder is stock: plain Sentence-Transformers gives the same vectors, on every family."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.settings.encoder import Pooling
from tests.conftest import FAMILIES, SENTENCES, by_default

TEXTS = [*SENTENCES, "", "a", "ends with </s> and <|memory_0|>", "long " * 200]
CASES = {
    "memory": {"pooling": Pooling("mean", "memory"), "memory_tokens": 3},
    "memory-with-words": {
        "template": 'task: {instruction}"{text}" means:{memory}',
        "prompts": {"query": "find ", "document": "keep "},
        "memory_tokens": 2,
    },
    "some-memory-tokens": {"pooling": Pooling("mean", "memory", slots=(2, 0)), "memory_tokens": 3},
    "one-memory-token": {"pooling": Pooling("last", "memory"), "memory_tokens": 1},
    "concat-of-one": {"pooling": Pooling("concat", "memory"), "memory_tokens": 1},
    "last-with-words": {
        "template": 'This text: "{text}" means in one word: "',
        "words_after": "separate",
        "pooling": Pooling("last", "all"),
        "memory_tokens": 0,
        "attention": "causal",
    },
    "last-eos": {"template": "{instruction}{text}{eos}", "memory_tokens": 0, "attention": "causal"},
    "mean-text": {"pooling": Pooling("mean", "text"), "memory_tokens": 0, "attention": "causal"},
    "mean-all-raw": {"pooling": Pooling("mean", "all"), "memory_tokens": 0, "normalize": False},
    "default-prompt": {
        "template": "{instruction}{text}",
        "prompts": {"query": "find: ", "document": "keep: "},
        "default_prompt_name": "document",
        "memory_tokens": 0,
        "attention": "causal",
    },
    "soft-prompt": {
        "template": "{soft_prompt}{instruction}{text}",
        "soft_prompt_tokens": 4,
        "pooling": Pooling("mean", "text"),
        "memory_tokens": 0,
        "attention": "causal",
    },
    "soft-prompt-and-memory": {
        "template": "{soft_prompt}{instruction}{text}{memory}",
        "soft_prompt_tokens": 2,
        "memory_tokens": 3,
        "prompts": {"query": "find: "},
    },
    "weighted": {"pooling": Pooling("weighted_mean", "all"), "memory_tokens": 0, "attention": "causal"},
}


def compare(encoder: Encoder, folder: Path) -> None:
    stock = SentenceTransformer(str(folder), device="cpu")
    options = {"show_progress_bar": False}
    assert np.abs(stock.encode(TEXTS, **options) - encoder.encode(TEXTS)).max() < 1e-5
    assert np.abs(stock.encode_query(TEXTS, **options) - encoder.encode_query(TEXTS)).max() < 1e-5
    assert np.abs(stock.encode_document(TEXTS, **options) - encoder.encode_document(TEXTS)).max() < 1e-5
    assert stock.max_seq_length == encoder.max_seq_length


QUICK = ["default-prompt", "soft-prompt-and-memory"]


@pytest.mark.parametrize("case", by_default(QUICK, CASES))
def test_every_kind_of_encoder(case, make_encoder, tmp_path):
    encoder = make_encoder(lora={}, max_length=64, **CASES[case])
    export_encoder(encoder, tmp_path / "stock", verify="off")
    compare(encoder, tmp_path / "stock")


@pytest.mark.parametrize("family", by_default(["gemma3"], FAMILIES))
def test_every_family(family, make_encoder, tmp_path):
    encoder = make_encoder(family, lora={}, max_length=64)
    before = encoder.encode(TEXTS)
    export_encoder(encoder, tmp_path / "stock", verify="off")
    compare(encoder, tmp_path / "stock")
    assert np.array_equal(encoder.encode(TEXTS), before), "exporting changes nothing"
    assert AutoConfig.from_pretrained(tmp_path / "stock").is_causal is False


@pytest.mark.parametrize("process", ["fork", pytest.param("new interpreter", marks=pytest.mark.slow)])
def test_verified_in_a_fresh_process(process, request, make_encoder, tmp_path):
    """Full verification; in a new interpreter, as a user has it, with the slow tests."""
    if process == "new interpreter":
        request.getfixturevalue("new_interpreter")
    encoder = make_encoder(lora={}, max_length={"query": 24, "document": 64})
    export_encoder(encoder, tmp_path / "stock", max_length=64)
    parity = json.loads((tmp_path / "stock" / "parity.json").read_text())
    assert [case["prompt_name"] for case in parity["cases"]] == ["query", "document", None]
    assert all(len(case["texts"]) == 18 for case in parity["cases"])
    with pytest.raises(FileExistsError, match="choose another folder"):
        export_encoder(encoder, tmp_path / "stock", verify="off", max_length=64)


def test_a_failed_proof_leaves_nothing(make_encoder, tmp_path, monkeypatch):
    from embrew.runtimes import portable as module

    encoder = make_encoder(lora={}, max_length=64)
    monkeypatch.setattr(module, "stock_prompts", lambda encoder: {"query": "other ", "document": ""})
    with pytest.raises(RuntimeError, match="other token ids for"):
        export_encoder(encoder, tmp_path / "stock")
    assert list(tmp_path.iterdir()) == []


def test_what_older_readers_need_is_there(make_encoder, tmp_path):
    encoder = make_encoder(lora={}, max_length=64)
    encoder.tokenizer = type(encoder.tokenizer).from_pretrained(_saved(encoder, tmp_path))
    encoder.tokenizer.chat_template = "{% for m in messages %}CHAT {{ m.content }}{% endfor %}"
    encoder.template.tokenizer = encoder.tokenizer
    export_encoder(encoder, tmp_path / "stock", verify="off")
    modules = json.loads((tmp_path / "stock" / "modules.json").read_text())
    assert {m["type"].rpartition(".")[0] for m in modules} == {"sentence_transformers.models"}
    pooling = json.loads((tmp_path / "stock" / "2_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"] is True
    assert pooling["pooling_mode"] == "mean"
    assert not list((tmp_path / "stock").rglob("*.jinja")), "no chat template: texts are not rendered through it"
    compare(encoder, tmp_path / "stock")
    assert not [p for p in (tmp_path / "stock").rglob("*") if p.suffix in (".bin", ".pkl", ".pt", ".py")]


def _saved(encoder: Encoder, folder: Path) -> Path:
    encoder.tokenizer.save_pretrained(folder / "tokenizer")
    return folder / "tokenizer"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"attention": "memory_causal"}, "stock modules are causal or bidirectional"),
        ({"pooling": Pooling("weighted_mean", "memory")}, "has no stock module"),
        ({"pooling": Pooling("concat", "memory"), "memory_tokens": 2}, "there is no stock module; their mean has one"),
        ({"template": ["{text}", "say {text}"], "memory_tokens": 0, "pooling": "last"}, "mean over 2 templates"),
        ({"template": "{text} {echo}", "memory_tokens": 0, "pooling": "last"}, "repeats the text"),
        ({"preparation": "sentence", "memory_tokens": 0, "pooling": "last"}, "changes the text first"),
        ({"template": "say {text}", "memory_tokens": 0, "pooling": Pooling("mean", "text")}, "leaves out the words"),
    ],
)
def test_what_cannot_be_stock_says_why(settings, words, make_encoder, tmp_path):
    with pytest.raises(ValueError, match=words):
        export_encoder(make_encoder(**settings), tmp_path / "stock")
