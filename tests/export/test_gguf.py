"""GGUF files: what is in them, read back with gguf's reader and compared with transformers' weights; refusals.

Token ids and vectors in llama.cpp itself are in test_llama_cpp.py, a slow test.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, Gemma3TextConfig, PreTrainedTokenizerFast

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.model.backbone import Backbone
from embrew.runtimes import llama_cpp
from embrew.runtimes.gguf_model import LLAMA3, QWEN2, Kind, kind_of, vocabulary_of
from embrew.settings.base import Base
from embrew.settings.encoder import Pooling
from tests.conftest import by_default
from tests.models import GROUPED, spread

LAST = {"memory_tokens": 0, "attention": "causal", "template": "{instruction}{text}{eos}", "pooling": "last"}
MEMORY = {"memory_tokens": 1, "attention": "causal"}
MEAN = {"memory_tokens": 0, "pooling": "mean"}


def written(encoder: Encoder, folder: Path, weights: str | None = None) -> Any:
    from gguf import GGUFReader

    export_encoder(encoder, folder, runtimes=["llama.cpp"], weights=weights, verify="off")
    (path,) = folder.glob("*.gguf")
    return GGUFReader(path)


def values(reader: Any) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items()}


def tensors(reader: Any) -> dict[str, np.ndarray]:
    from gguf.quants import dequantize

    return {t.name: dequantize(t.data, t.tensor_type).reshape(*t.shape.tolist()[::-1]) for t in reader.tensors}


@pytest.mark.parametrize("family", by_default(["llama", "qwen3"], ["llama", "mistral", "qwen2", "qwen3"]))
def test_tensors_are_the_merged_weights(family, make_encoder, tmp_path):
    encoder = make_encoder(family, lora={}, max_length=8, **LAST)
    found = tensors(written(encoder, tmp_path / "out", "fp32"))
    encoder.backbone.merge_adapter()
    ours = {name: value.float().numpy() for name, value in encoder.backbone.inner.state_dict().items()}
    assert len(found) == len(ours) >= 20
    assert np.array_equal(found["token_embd.weight"][:300], ours["embed_tokens.weight"])
    assert np.array_equal(found["output_norm.weight"], ours["norm.weight"])
    for other, own in {
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_down": "mlp.down_proj",
    }.items():
        assert np.array_equal(found[f"blk.1.{other}.weight"], ours[f"layers.1.{own}.weight"]), own
    for other, own, heads in (("attn_q", "q_proj", 4), ("attn_k", "k_proj", 2)):
        theirs, weight = found[f"blk.1.{other}.weight"], ours[f"layers.1.self_attn.{own}.weight"]
        if family in ("llama", "mistral"):  # by hand: rows 0 1 2 3 4 5 6 7 of a head are there as 0 4 1 5 2 6 3 7
            order = [head * 8 + i for head in range(heads) for i in (0, 4, 1, 5, 2, 6, 3, 7)]
            assert np.array_equal(theirs, weight[order]) and not np.array_equal(theirs, weight)
        else:
            assert np.array_equal(theirs, weight)


def gemma3(tokenizer: Any, *, attention: str, **changes: Any) -> Encoder:
    sizes = {**GROUPED, "num_hidden_layers": 6, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8}
    torch.manual_seed(0)
    model = spread(AutoModelForCausalLM.from_config(Gemma3TextConfig(**{**sizes, **changes})), bias=0.02)
    settings = {**(LAST if attention == "causal" else MEAN), "attention": attention, "max_length": 8}
    del settings["memory_tokens"]
    return Encoder(Backbone(model), tokenizer, Base("folder", "tiny"), **settings).eval()


@pytest.mark.parametrize(("attention", "name"), [("causal", "gemma3"), ("bidirectional", "gemma-embedding")])
def test_gemma3(attention, name, tokenizer, tmp_path, monkeypatch):
    encoder = gemma3(tokenizer, attention=attention)
    monkeypatch.setattr(llama_cpp, "interpreter", lambda: None)
    with pytest.raises(ValueError, match="not yet compared with llama.cpp.*llama-cpp-python: install it"):
        written(encoder, tmp_path / "out", "fp32")
    monkeypatch.setattr(llama_cpp, "interpreter", lambda: sys.executable)
    reader = written(encoder, tmp_path / "out", "fp32")
    found, theirs = values(reader), tensors(reader)
    assert found["general.architecture"] == name and found[f"{name}.attention.causal"] is (attention == "causal")
    assert found[f"{name}.attention.sliding_window"] == 16, "as far as texts of 8 tokens reach in both directions"
    assert found[f"{name}.rope.freq_base"] == 1e6, "that of full attention; 10000 in the window is in llama.cpp"
    ours = {key: value.float().numpy() for key, value in encoder.backbone.inner.state_dict().items()}
    assert len(theirs) == len(ours) == 6 * 13 + 2
    for theirs_name, own in {"attn_norm": "input_layernorm", "attn_q_norm": "self_attn.q_norm"}.items():
        assert np.array_equal(theirs[f"blk.5.{theirs_name}.weight"], ours[f"layers.5.{own}.weight"] + 1), own
    for theirs_name, own in {"ffn_norm": "pre_feedforward", "post_ffw_norm": "post_feedforward"}.items():
        assert np.array_equal(theirs[f"blk.5.{theirs_name}.weight"], ours[f"layers.5.{own}_layernorm.weight"] + 1), own
    assert np.array_equal(theirs["blk.5.attn_q.weight"], ours["layers.5.self_attn.q_proj.weight"])
    assert np.array_equal(theirs["token_embd.weight"][:300], ours["embed_tokens.weight"]), "scaled in llama.cpp"
    lines = (tmp_path / "out" / "Modelfile").read_text().splitlines()
    assert lines[-2:] == ["FROM ./tiny-F32.gguf", "PARAMETER num_ctx 8"]
    assert (tmp_path / "out" / "passport.json").is_file()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}, "in each sixth one"),
        ({"query_pre_attn_scalar": 4}, "scaled by 4 .*width of a head, 8"),
        ({"sliding_window": 7}, "sliding window of 7 tokens.* --max-length 7 or less"),
    ],
)
def test_gemma3_that_llama_cpp_has_not(changes, words, tokenizer, tmp_path):
    with pytest.raises(ValueError, match=words):
        written(gemma3(tokenizer, attention="causal", **changes), tmp_path / "out")


def test_key_values_and_one_memory_token(make_encoder, tmp_path):
    encoder = make_encoder(lora={}, max_length=24, prompts={"query": "find: ", "document": ""}, **MEMORY)
    reader = written(encoder, tmp_path / "out")
    found, last = values(reader), found_last(reader)
    assert {name: found[f"llama.{name}"] for name in ("context_length", "block_count", "embedding_length")} == {
        "context_length": 24, "block_count": 2, "embedding_length": 32,
    }  # fmt: skip
    assert found["llama.attention.causal"] is True and found["llama.pooling_type"] == 3
    assert found["tokenizer.ggml.add_bos_token"] is True and found["tokenizer.ggml.bos_token_id"] == 1
    assert found["tokenizer.ggml.add_eos_token"] is True and last == 300, "the memory token, after the 300 of the base"
    assert np.allclose(
        tensors(reader)["token_embd.weight"][last],
        torch.cat(list(encoder.backbone.learned.values())).detach().numpy()[0],
        atol=1e-3,
    ), "fp16 by default"
    assert found["embrew.prompts.texts"] == ["find: ", ""]
    assert {kind.name for kind in (t.tensor_type for t in reader.tensors)} == {"F16", "F32"}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "tiny-F16.gguf" in card and "'find: ' + text" in card and "SentenceTransformer(" not in card
    parity = json.loads((tmp_path / "out" / "parity.json").read_text())
    assert parity["llama.cpp"] == {"file": "tiny-F16.gguf", "text_preparation": []} and "verified" not in parity


def found_last(reader: Any) -> int:
    return int(reader.fields["tokenizer.ggml.eos_token_id"].contents())


def test_no_text_is_a_special_token(make_encoder, tmp_path):
    found = values(written(make_encoder(max_length=8, **MEMORY), tmp_path / "out"))
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert tokens[:3] == ["<pad> (special token 0)", "<s> (special token 1)", "</s> (special token 2)"]
    assert tokens[300] == "<|memory_0|> (special token 300)"
    assert types == [5] * 3 + [1] * 297 + [5], "unused, which llama.cpp never looks for in a text; the others normal"


def test_added_tokens_that_are_not_special_are_warned_of(make_encoder, tmp_path, caplog):
    """llama.cpp makes this name a special token; `embed` of llama-cpp-python then reads it as words."""
    encoder = make_encoder(max_length=24, **MEAN)
    written(encoder, tmp_path / "without")
    assert "added tokens" not in caplog.text
    encoder.tokenizer = copy.deepcopy(encoder.tokenizer)
    encoder.tokenizer.add_tokens([AddedToken("<|fim_prefix|>", special=False, normalized=False)])
    written(encoder, tmp_path / "with")
    words = "added tokens that are found in texts (<|fim_prefix|>)"
    assert words in caplog.text and words in (tmp_path / "with" / "README.md").read_text()


def test_bidirectional_mean_and_quantised_rows(make_encoder, tmp_path):
    encoder = make_encoder("qwen3", max_length=8, **MEAN)
    reader = written(encoder, tmp_path / "out", "int8")
    found = values(reader)
    assert found["qwen3.attention.causal"] is False and found["qwen3.pooling_type"] == 1
    assert found["tokenizer.ggml.add_eos_token"] is False
    embeddings = encoder.backbone.inner.get_input_embeddings().weight.detach().numpy()
    steps = np.abs(embeddings).max(axis=1, keepdims=True) / 127  # one block of 32 per row
    assert np.abs(tensors(reader)["token_embd.weight"] - embeddings).max() <= 0.51 * steps.max()
    assert {t.tensor_type.name for t in reader.tensors} == {"Q8_0", "F32"}


REFUSED = {
    "memory-tokens": ({"memory_tokens": 3}, "3 memory tokens, and llama.cpp adds one .* train one memory token"),
    "soft-prompt": ({**LAST, "soft_prompt_tokens": 2, "template": "{soft_prompt}{text}"}, "soft prompt comes before"),
    "eos-after-memory": ({**MEMORY, "template": "{text}{memory}{eos}"}, "2 tokens come after every text"),
    "weighted": ({**MEAN, "pooling": "weighted_mean"}, "pools weighted_mean over all"),
    "text": ({**MEAN, "pooling": Pooling("mean", "text"), "template": "{text}"}, "pools mean over text"),
    "projection": ({**MEAN, "pooling": Pooling("mean", projection=4)}, "a projection before they are pooled"),
    "latents": ({**MEAN, "pooling": Pooling("mean", latents=4, heads=1)}, "latent attention"),
    "family": ({**LAST, "family": "gpt-neox"}, "is gpt_neox; .* llama, mistral, qwen2, qwen3, gemma3_text"),
    "window": ({**LAST, "family": "mistral", "max_length": 9}, "sliding window of 8 tokens.* --max-length 8 or less"),
}  # fmt: skip
WORDS = {**LAST, "template": '"{text}" means: "', "words_after": "separate"}


@pytest.mark.parametrize("case", [*REFUSED, "words"])
def test_what_llama_cpp_cannot_represent(case, make_encoder, tmp_path):
    options, words = {**REFUSED, "words": (WORDS, "words after the text")}[case]
    encoder = make_encoder(**{"max_length": 16, **options})
    with pytest.raises(ValueError, match=words):
        written(encoder, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_dimensions_and_the_missing_package(make_encoder, tmp_path, monkeypatch):
    encoder = make_encoder(max_length=16, **LAST)
    with pytest.raises(ValueError, match="keeps 8 of 32 dimensions.* without --dim"):
        export_encoder(encoder, tmp_path / "out", runtimes=["llama.cpp"], truncate_dim=8)
    with pytest.raises(ValueError, match="weights='int4' for llama.cpp; choose from fp16, fp32, bf16, int8"):
        written(encoder, tmp_path / "out", "int4")
    with torch.no_grad():
        encoder.backbone.inner.get_input_embeddings().weight[5, 5] = 1e5
    with pytest.raises(ValueError, match="too large for fp16; use bf16 or fp32"):
        written(encoder, tmp_path / "out")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install \"embrew\[gguf\]\""):
        written(encoder, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def of(pre: Any, *, normalizer: Any = None, **options: Any) -> PreTrainedTokenizerFast:
    built = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], **options))
    built.pre_tokenizer, built.normalizer = pre, normalizer
    return PreTrainedTokenizerFast(tokenizer_object=built)


def test_pre_tokenizers_by_definition():
    def split(expression: str) -> Any:
        from tokenizers import Regex

        words = pre_tokenizers.Split(Regex(expression), "isolated")
        return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])

    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    space = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    assert kind_of(of(split(QWEN2), normalizer=normalizers.NFC())).pre == "qwen2"
    assert kind_of(of(split(LLAMA3), ignore_merges=True)).pre == "llama-bpe"
    assert kind_of(of(split(LLAMA3))).pre == "dbrx", "which does not ignore merges"
    assert kind_of(of(pre_tokenizers.ByteLevel(False))).pre == "gpt-2"
    assert kind_of(of(digits)).pre == "refact"
    assert kind_of(of(space, byte_fallback=True)).model == "llama"
    gemma = of(
        pre_tokenizers.Split(" ", "merged_with_previous"), normalizer=normalizers.Replace(" ", "▁"), byte_fallback=True
    )
    gemma.add_tokens([AddedToken("\n\n", special=False, normalized=False)])
    assert kind_of(gemma) == Kind("llama", "default"), "no space before a text, so that one may follow an added token"
    gemma.add_tokens([AddedToken("▁▁", special=False, normalized=True)])
    with pytest.raises(ValueError, match="added token '▁▁'"):
        kind_of(gemma)
    for other in (
        of(split(QWEN2.replace("1,3", "1,2").replace("d)", "x)"))),
        of(split(QWEN2), ignore_merges=True),
        of(pre_tokenizers.ByteLevel(True)),
        of(pre_tokenizers.Whitespace()),
        of(None),
    ):
        with pytest.raises(ValueError, match="is not known to be one of llama.cpp's"):
            kind_of(other)
    with pytest.raises(ValueError, match="normalises texts by .*Lowercase"):
        kind_of(of(pre_tokenizers.ByteLevel(False), normalizer=normalizers.Lowercase()))
    with pytest.raises(ValueError, match="is not SentencePiece's space"):
        kind_of(of(pre_tokenizers.Metaspace(split=True), byte_fallback=True))


def test_sentencepiece_merges_become_scores():
    space = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)

    def made(*merges: tuple[str, str]) -> PreTrainedTokenizerFast:
        names = dict.fromkeys(["▁", *"abcd", "</", *("".join(pair) for pair in merges)])
        built = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, list(merges), byte_fallback=True))
        built.pre_tokenizer = space
        return PreTrainedTokenizerFast(tokenizer_object=built)

    tokenizer = made(("c", "d"), ("a", "b"))
    found = vocabulary_of(tokenizer, kind_of(tokenizer), 9)
    assert found.tokens[-1] == "unused row 8" and "</ (no merge makes it, 5)" in found.tokens
    assert [found.scores[found.tokens.index(name)] for name in ("cd", "ab")] == [0, -1], "cd is merged first"
    for wrong, words in (
        (made(("a", "b"), ("b", "c"), ("a", "bc")), r"does not merge 'ab' and 'c' to 'abc'"),
        (made(("a", "b"), ("b", "c"), ("a", "bc"), ("c", "d"), ("ab", "c")), "ranks 2 and 4, with others between"),
    ):
        with pytest.raises(ValueError, match=words):
            vocabulary_of(wrong, kind_of(wrong), 9)
