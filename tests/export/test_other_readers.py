"""What other software reads in a stock folder: names in the post-processor, limits, the direction of attention."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import AutoTokenizer, DataCollatorWithFlattening
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.settings.encoder import Pooling
from tests.conftest import SENTENCES
from tests.hard_texts import real_tokenizer_folder
from tests.journeys import tiny_lm

TEXTS = [*SENTENCES, "a", "ends with </s>", "long " * 200]
LAST = {"memory_tokens": 0, "pooling": "last", "template": "{instruction}{text}{eos}", "attention": "causal"}
PLAIN = {"memory_tokens": 0, "attention": "causal"}


def exported(encoder: Encoder, folder: Path) -> Path:
    export_encoder(encoder, folder, verify="off")
    return folder


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("settings", "added"),
    [
        (LAST, ["<s>", None, "</s>"]),
        ({"memory_tokens": 2}, ["<s>", None, "<|memory_0|>", "<|memory_1|>"]),
        ({"memory_tokens": 1, "template": "{text}: {memory}"}, ["<s>", None, ":", "Ġ", "<|memory_0|>"]),
        ({**LAST, "template": "{text} a a{eos}", "words_after": "separate"}, ["<s>", None, "Ġa", "Ġa", "</s>"]),
    ],
)
def test_added_tokens_have_their_own_names(
    settings: dict, added: list, make_encoder: Callable[..., Encoder], tmp_path: Path
) -> None:
    """Each entry of the post-processor is one token, by its name in the vocabulary, also where that is a colon."""
    folder = exported(make_encoder(max_length=64, **settings), tmp_path / "stock")
    processor = read(folder / "tokenizer.json")["post_processor"]
    names = [piece.get("SpecialToken", {}).get("id") for piece in processor["single"]]
    assert names == added
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, entry in processor["special_tokens"].items():
        assert entry == {"id": name, "ids": [tokenizer.convert_tokens_to_ids(name)], "tokens": [name]}


@pytest.mark.parametrize(
    ("template", "memory", "eos"),
    [
        pytest.param("{text}{eos}", 0, "</s>", marks=pytest.mark.slow),
        pytest.param("{text}", 0, None, marks=pytest.mark.slow),
        ("{text}{memory}", 1, "<|memory_0|>"),
    ],
)
@pytest.mark.slow
def test_gguf_finds_bos_and_eos(template: str, memory: int, eos: str | None, tmp_path: Path) -> None:
    """gguf's own reader of `tokenizer.json` says that BOS is added, and the last token as EOS."""
    vocab = pytest.importorskip("gguf", reason="the extra gguf is not installed")
    lm = tiny_lm("mistral", AutoTokenizer.from_pretrained(real_tokenizer_folder("mistral")), tmp_path / "lm")
    settings = {"template": template, "attention": "causal", "max_length": 32}
    pooling = Pooling("last", "memory") if memory else "last"
    encoder = Encoder.from_pretrained(lm, device="cpu", memory_tokens=memory, pooling=pooling, **settings)
    folder = exported(encoder, tmp_path / "stock")
    found = vocab.SpecialVocab(folder, load_merges=False)
    assert found.add_special_token["bos"] is True
    assert found.add_special_token.get("eos", False) is (eos is not None)
    assert not found.add_special_token.get("sep", False)
    if eos is not None:
        assert found.special_token_ids["eos"] == AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(eos)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_limits_and_the_direction_of_attention(
    attention: str, make_encoder: Callable[..., Encoder], tmp_path: Path
) -> None:
    folder = exported(make_encoder(memory_tokens=0, attention=attention, max_length=48), tmp_path / "stock")
    settings = read(folder / "sentence_bert_config.json")
    assert (settings["max_seq_length"], settings["do_lower_case"]) == (48, False)
    config = read(folder / "config.json")
    assert config["is_causal"] is (attention == "causal")
    assert config["use_bidirectional_attention"] is (attention == "bidirectional")
    assert SentenceTransformer(str(folder), device="cpu").max_seq_length == 48


def test_gemma3_keeps_its_own_flag(make_encoder: Callable[..., Encoder], tmp_path: Path) -> None:
    """There the flag would change the sliding window, and so the vectors."""
    folder = exported(make_encoder("gemma3", memory_tokens=0, max_length=48), tmp_path / "stock")
    config = read(folder / "config.json")
    assert (config["is_causal"], config["use_bidirectional_attention"], config["sliding_window"]) == (False, False, 8)


def test_a_mean_over_texts_without_added_tokens_is_a_mean_over_all(tmp_path: Path) -> None:
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


def varlen(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: object
) -> tuple[Tensor, None]:
    """Attention within each text of a concatenated batch, as FlashAttention's varlen kernel defines it."""
    assert attention_mask is None
    ends = options["cu_seq_lens_q"].tolist()  # type: ignore[attr-defined]
    causal = options.get("is_causal")
    causal = module.is_causal if causal is None else causal
    parts = [
        torch.nn.functional.scaled_dot_product_attention(
            query[:, :, begin:end],
            key[:, :, begin:end],
            value[:, :, begin:end],
            is_causal=bool(causal) and end - begin > 1,
            scale=options["scaling"],  # type: ignore[arg-type]
            enable_gqa=query.shape[1] != key.shape[1],
        )
        for begin, end in pairwise(ends)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def unpadded(folder: Path) -> SentenceTransformer:
    """The folder as Sentence-Transformers runs it with FlashAttention: batches concatenated, no padding, no mask."""
    ALL_ATTENTION_FUNCTIONS.register("varlen_test", varlen)
    ALL_MASK_ATTENTION_FUNCTIONS.register("varlen_test", lambda *args, **kwargs: None)
    model = SentenceTransformer(str(folder), device="cpu")
    transformer = model[0]
    transformer.model.set_attn_implementation("varlen_test")
    transformer.can_flatten_inputs = True
    transformer.data_collator = DataCollatorWithFlattening(
        return_seq_idx=True, return_flash_attn_kwargs=True, return_position_ids=True
    )
    transformer._flatten_position_offset = transformer._infer_flatten_position_offset()
    if transformer.model_forward_params is not None:
        transformer.model_forward_params |= {
            "cu_seq_lens_q",
            "cu_seq_lens_k",
            "max_length_q",
            "max_length_k",
            "seq_idx",
        }
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {"memory_tokens": 1, "pooling": Pooling("last", "memory")},
        {"memory_tokens": 0, "pooling": "mean"},
        pytest.param(LAST, marks=pytest.mark.slow),
        pytest.param({**PLAIN, "pooling": "weighted_mean"}, marks=pytest.mark.slow),
    ],
)
def test_texts_may_be_concatenated(settings: dict, make_encoder: Callable[..., Encoder], tmp_path: Path) -> None:
    """Without padding the vectors are the same, so Sentence-Transformers may choose its fastest path."""
    encoder = make_encoder(lora={}, max_length=64, **settings)
    folder = exported(encoder, tmp_path / "stock")
    assert "unpad_inputs" not in read(folder / "sentence_bert_config.json")
    assert np.abs(unpadded(folder).encode(TEXTS, batch_size=4) - encoder.encode(TEXTS)).max() < 1e-5


def test_where_texts_must_be_padded(make_encoder: Callable[..., Encoder], tmp_path: Path) -> None:
    """`WordWeights` has no mask there; and a text without tokens takes the vector of the one before it."""
    memory = exported(make_encoder(max_length=64), tmp_path / "memory")
    assert read(memory / "sentence_bert_config.json")["unpad_inputs"] is False
    with pytest.raises(KeyError, match="attention_mask"):
        unpadded(memory).encode(TEXTS)
