"""Two continuations in one row are measured against each alone, and refused where a model counts places in the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

from embrew.encoder import Encoder
from embrew.methods import Llama2Vec
from embrew.model import continuations
from embrew.model.backbone import Backbone
from embrew.model.base import Base
from embrew.settings.pooling import Pooling
from tests.conftest import by_default
from tests.families import FAMILIES, SIZES, config_of

FALCON: dict[str, Any] = {**SIZES, "new_decoder_architecture": False}
REFUSED: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "gpt_neo": (lambda: config_of("gpt_neo"), "GPTNeoModel .* its states are not those of each continuation alone"),
    "mpt": (
        lambda: AutoConfig.for_model("mpt", vocab_size=300, d_model=32, n_layers=2, n_heads=4, max_seq_len=128),
        "MptModel .* its states are not those of each continuation alone",
    ),
    "bloom": (
        lambda: AutoConfig.for_model("bloom", vocab_size=300, hidden_size=32, n_layer=2, n_head=4),
        "BloomModel .* cannot read a text of",
    ),
    "falcon_alibi": (
        lambda: AutoConfig.for_model("falcon", **{**FALCON, "alibi": True}),
        "FalconModel .* cannot read a text of",
    ),
}


def encoder_of(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, dtype: torch.dtype) -> Encoder:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.15)
    backbone = Backbone(model.to(dtype))
    backbone.add_memory(2, seed=1)
    return Encoder(
        backbone,
        tokenizer,
        Base("folder", "tiny"),
        template='"{text}{instruction}{memory}',
        pooling=Pooling("mean", "memory"),
        prompts={"query": " The next:", "document": " The original:"},
        max_length=64,
    ).eval()


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_counts_places_in_the_row_is_refused(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    made, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"(?s){message}.*use a model family"):
        Llama2Vec().setup(encoder_of(made(), tokenizer, torch.float32))


@pytest.mark.parametrize("dtype", by_default([torch.bfloat16], [torch.float32, torch.bfloat16]))
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gpt_neo"])
def test_other_families_are_measured_in_float32_and_taken(
    name: str, dtype: torch.dtype, tokenizer: PreTrainedTokenizerFast
) -> None:
    encoder = encoder_of(config_of(name), tokenizer, dtype).train()
    if name != "qwen3_moe":
        encoder.backbone.add_lora({"r": 2, "target_modules": "all-linear"})
    before = {key: tensor.clone() for key, tensor in encoder.state_dict().items()}
    Llama2Vec().setup(encoder)
    assert all(torch.equal(tensor, before[key]) for key, tensor in encoder.state_dict().items())
    assert dtype in {tensor.dtype for tensor in encoder.backbone.inner.parameters()}
    assert encoder.training


def test_a_window_that_no_row_reaches_is_no_hindrance(tokenizer: PreTrainedTokenizerFast) -> None:
    """And what was measured holds for the same settings alone: the next model, with a short window, is refused."""
    long, short = config_of("gpt_neo"), config_of("gpt_neo")
    long.window_size = 128
    Llama2Vec().setup(encoder_of(long, tokenizer, torch.float32))
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ValueError, match="its states are not those of each continuation alone"):
            Llama2Vec().setup(encoder_of(short, tokenizer, dtype))


def test_it_is_measured_once_where_it_holds(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, measured = [], continuations._difference
    monkeypatch.setattr(continuations, "_VERIFIED", set())
    monkeypatch.setattr(continuations, "_difference", lambda *given: calls.append(1) or measured(*given))
    for name, times in (("llama", 1), ("gpt_neo", 2)):
        calls.clear()
        for _ in range(2):
            encoder = encoder_of(config_of(name), tokenizer, torch.float32)
            if name == "llama":
                Llama2Vec().setup(encoder)
            else:
                with pytest.raises(ValueError, match="GPTNeoModel"):
                    Llama2Vec().setup(encoder)
        assert len(calls) == times, name
