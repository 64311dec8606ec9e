"""Attention and positions are measured when an encoder is built: followed by some means, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from embrew.encoder import Encoder
from embrew.files.checksums import write_checksums
from embrew.model.attention import Attention
from embrew.model.backbone import Backbone
from embrew.model.contexts import Context
from embrew.model.forward import try_two_calls
from embrew.settings.base import Base
from embrew.settings.encoder import Demonstration, Demonstrations, Pooling
from embrew.text.tokens import Row, Segment, Tokens
from tests.families import config_of
from tests.models import spread


def backbone_of(name: str, **settings: Any) -> Backbone:
    torch.manual_seed(0)
    config = config_of(name)
    for key, value in settings.items():
        setattr(config, key, value)
    return Backbone(spread(AutoModelForCausalLM.from_config(config)))


def encoder_of(
    name: str, tokenizer: PreTrainedTokenizerFast, backbone: Backbone | None = None, **settings: Any
) -> Encoder:
    return Encoder(
        backbone or backbone_of(name), tokenizer, Base("folder", "tiny"), **{"max_length": 64, **settings}
    ).eval()


def first_moves(encoder: Encoder) -> list[bool]:
    """Whether the first state moves when the last token changes: alone, and beside a longer row."""
    found = []
    for others in ([], [Row.labelled(range(40, 60), Segment.TEXT)]):
        rows = [Row.labelled([5, 6, 7, 8, last], Segment.TEXT) for last in (9, 200)]
        with torch.no_grad():
            one, other = (encoder.hidden_states(Tokens.pad([row, *others]))[0, 0] for row in rows)
        found.append(bool((one - other).abs().max() > 1e-4))
    return found


@pytest.mark.parametrize("name", ["stablelm", "opt"])
def test_bidirectional_is_bidirectional_where_the_flag_is_ignored(name, tokenizer):
    """StableLM follows `is_causal` in padded batches only, OPT's decoder has a configuration of its own."""
    encoder = encoder_of(name, tokenizer, attention="bidirectional", pooling="mean")
    assert first_moves(encoder) == [True, True]
    encoder.use_attention("causal")
    assert first_moves(encoder) == [False, False]
    encoder.use_attention("bidirectional")
    assert first_moves(encoder) == [True, True]


def test_what_cannot_be_followed_is_refused_when_it_is_asked_for(tokenizer, tmp_path):
    refused = r"GPTNeoModel with attn_implementation=eager does not follow it .* it follows causal; set"
    with pytest.raises(ValueError, match=refused):
        encoder_of("gpt_neo", tokenizer, attention="bidirectional")
    encoder = encoder_of("gpt_neo", tokenizer)
    with pytest.raises(ValueError, match=refused):
        encoder.use_attention("bidirectional")
    assert encoder.attention.mode == "causal"
    assert first_moves(encoder) == [False, False]
    encoder.backbone.causal_lm.save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    with pytest.raises(ValueError, match=refused):
        Encoder.from_pretrained(tmp_path / "lm", attention="bidirectional", device="cpu")
    Encoder.from_pretrained(tmp_path / "lm", max_length=64, device="cpu").save_pretrained(tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / "embrew.json").read_text())
    (tmp_path / "saved" / "embrew.json").write_text(json.dumps({**settings, "attention": "bidirectional"}))
    write_checksums(tmp_path / "saved")
    with pytest.raises(ValueError, match=refused):
        Encoder.from_pretrained(tmp_path / "saved", device="cpu")


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_max_length_beyond_learned_positions_is_refused(name, tokenizer):
    with pytest.raises(ValueError, match=r"max_length=129, and \w+ has positions for 128 tokens"):
        encoder_of(name, tokenizer, max_length=129)
    encoder = encoder_of(name, tokenizer, max_length=128)
    vectors = encoder.encode(["word " * 400, "word"])
    assert vectors.shape == (2, 32), "the longest row that is allowed"


def test_what_stands_beside_a_text_counts_as_positions(tokenizer):
    """Memory tokens count within max_length; demonstrations, and targets behind a text, beyond it."""
    settings = {"template": "{instruction}{text}", "demonstrations": Demonstrations(compress="none")}
    encoder = encoder_of("gpt2", tokenizer, max_length=100, **settings)
    pairs = (Demonstration("the quick brown fox", "jumps over the lazy dog"),)
    with pytest.raises(ValueError, match=r"the demonstrations take \d+ tokens and texts up to 100"):
        encoder.add_context("task", Context("find: ", pairs))
    row = Row.labelled([5] * 100, Segment.TEXT) + Row.labelled([6] * 29, Segment.TARGET)
    with pytest.raises(ValueError, match="a row has 129 tokens, and GPT2Model has positions for 128; the text, its"):
        encoder.hidden_states(Tokens.pad([row]))
    with torch.no_grad(), encoder.backbone.frozen_lm() as lm, pytest.raises(ValueError, match="a row has 129 tokens"):
        lm.hidden_states(Tokens.pad([row]))


def test_attention_dropout_without_effect_is_refused(tokenizer):
    """Falcon applies it with ALiBi only."""
    with pytest.raises(ValueError, match="FalconModel does not apply its attention dropout with attn_impl"):
        encoder_of("falcon", tokenizer).backbone.set_attention_dropout(0.2)


def test_states_that_are_projected_at_the_end_have_their_width(tokenizer):
    """OPT-350m: embeddings and final states are narrower than its layers."""
    torch.manual_seed(0)
    config = config_of("opt")
    config.word_embed_proj_dim, config.do_layer_norm_before = 16, False
    backbone = Backbone(AutoModelForCausalLM.from_config(config).eval())
    backbone.add_memory(2)
    settings = {"template": "{text}{memory}", "pooling": Pooling("mean", "memory")}
    encoder = encoder_of("opt", tokenizer, backbone=backbone, **settings)
    assert encoder.encode(["one", "another"]).shape == (2, 16)
    assert encoder.get_embedding_dimension() == 16
    with pytest.raises(ValueError, match="projects its states after the last layer"):
        encoder.layer_embeddings(encoder.tokenize(["one"]))


@pytest.mark.parametrize("kernel", ["sdpa", "eager", "two calls"])
def test_a_bottleneck_is_measured_in_one_layer(kernel, monkeypatch):
    """Through two layers, a target knows the text by way of the memory, and a leak would not show."""
    from embrew.model import forward

    backbone = backbone_of("granite", _attn_implementation="sdpa" if kernel == "two calls" else kernel)
    if kernel == "two calls":
        assert try_two_calls(backbone.inner)
    attention = Attention("causal", bottleneck="visible")
    backbone.check_attention(attention)
    monkeypatch.setattr(forward, "_VERIFIED", set())
    run = forward._run
    monkeypatch.setattr(forward, "_run", lambda i, x, t, a, n, **o: run(i, x, t, Attention("causal"), n, **o))
    with pytest.raises(ValueError, match="attention=causal with a bottleneck: GraniteModel with attn_impl"):
        backbone.check_attention(attention)


def unmasked(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **how: Any) -> Any:
    """A kernel that takes no mask, as flash-attention."""
    return sdpa_attention_forward(module, query, key, value, None, **how)


@pytest.mark.parametrize(
    "attention", [Attention("memory_causal"), Attention("causal", bottleneck="visible")], ids=lambda one: one.mode
)
def test_a_kernel_without_masks_is_refused_where_the_pattern_needs_one(attention):
    AttentionInterface.register("test_unmasked", unmasked)
    backbone = backbone_of("llama", _attn_implementation="test_unmasked")
    backbone.check_attention(Attention("causal"))
    refused = r"LlamaModel with attn_implementation=test_unmasked does not follow it .* it follows causal"
    with pytest.raises(ValueError, match=refused):
        backbone.check_attention(attention)


def test_where_the_two_calls_are_not_followed_a_mask_is():
    """StableLM's layers do not pass on what the two calls need, so that a target would read the text."""
    backbone = backbone_of("stablelm")
    assert not try_two_calls(backbone.inner)
    rows = [
        Row.labelled([5, first, 7], Segment.TEXT)
        + Row.labelled([8], Segment.MEMORY)
        + Row.labelled([9, 10], Segment.TARGET)
        for first in (6, 200)
    ]
    attention = Attention("causal", bottleneck="strict")
    with torch.no_grad():
        one, other = (backbone.hidden_states(Tokens.pad([row]), attention, num_layers=1)[0] for row in rows)
    assert torch.equal(one[4:], other[4:]), "in one layer, a target knows nothing of the text"
    assert not torch.equal(one[3], other[3])
