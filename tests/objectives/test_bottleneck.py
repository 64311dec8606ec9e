"""The bottleneck: two calls are the dense mask are two passes; nothing passes by the memory."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from transformers import DynamicCache

from embrew.methods import Bottleneck
from embrew.model.attention import TWO_CALLS, Attention
from embrew.recipe import build
from embrew.text.tokens import Segment, Tokens
from tests.conftest import DIFFERENT, FAMILIES, SENTENCES, by_default
from tests.objectives.cases import loss_and_gradients

LORA = {"lora_dropout": 0.0}
PAIRS = [{"query": text[: 12 + 7 * i], "positive": text[10:]} for i, text in enumerate(SENTENCES)]
kinds = pytest.mark.parametrize("bos", ["visible", "strict"])


def ready(make_encoder, family="llama", **settings):
    encoder = make_encoder(family, lora=LORA, attention="causal")
    objective = Bottleneck(**settings)
    objective.setup(encoder)
    return encoder, objective, objective.collate(PAIRS, encoder)


def assert_two_calls_are_the_dense_mask(encoder, objective, batch):
    """Loss and gradients in float64; gives those of two calls."""
    encoder.double()
    found = []
    for kernel in (TWO_CALLS, "sdpa"):
        encoder.backbone.inner.config._attn_implementation = kernel
        found.append(loss_and_gradients(encoder, objective, batch))
    (loss, grads), (wanted, others) = found
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=0)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, others[name], rtol=1e-8, atol=1e-12)
    return loss, grads


@kinds
@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
def test_two_calls_are_the_dense_mask(family, bos, make_encoder):
    """Loss and gradients in float64, rows of different lengths. Short windows take the mask in any case."""
    encoder, objective, batch = ready(make_encoder, family, bos=bos)
    assert_two_calls_are_the_dense_mask(encoder, objective, batch)


@pytest.mark.parametrize("family", ["llama", "gpt-neox"])
def test_no_mask_is_made(family, make_encoder, monkeypatch):
    encoder, objective, batch = ready(make_encoder, family)
    monkeypatch.setattr(Attention, "mask", lambda *_: pytest.fail("a dense mask was made"))
    assert torch.isfinite(objective(encoder, batch)["loss"])


def test_two_passes_that_keep_the_memory_s_keys_and_values_alone(make_encoder):
    """Text and memory once, all but the memory (and BOS) forgotten, then the target at its places."""
    encoder, _objective, batch = ready(make_encoder, "qwen3")
    tokens, inner = batch["text"], encoder.backbone.inner
    with torch.no_grad():
        together = encoder.backbone.hidden_states(tokens, Attention("causal", bottleneck="visible"))
        for i in range(len(tokens)):
            segments = tokens.segment_ids[i]
            first = (segments != Segment.PAD) & (segments != Segment.TARGET)
            target = segments == Segment.TARGET
            embedded = encoder.backbone.embed(tokens)[i : i + 1]
            cache = DynamicCache(config=inner.config)
            inner(inputs_embeds=embedded[:, first], past_key_values=cache, use_cache=True)
            kept = (segments[first] == Segment.MEMORY) | (torch.arange(int(first.sum())) == 0)
            small = DynamicCache(config=inner.config)
            for number, layer in enumerate(cache.layers):
                small.update(layer.keys[:, :, kept], layer.values[:, :, kept], number)
            alone = inner(
                inputs_embeds=embedded[:, target],
                position_ids=torch.arange(len(segments))[target][None],
                past_key_values=small,
                use_cache=True,
            ).last_hidden_state[0]
            torch.testing.assert_close(together[i, target], alone, rtol=0, atol=1e-5)


@kinds
def test_nothing_passes_by_the_memory(bos, make_encoder):
    """Another text with the memory's states held fixed changes no prediction; without the wall it does."""
    encoder, _objective, batch = ready(make_encoder, bos=bos)
    tokens: Tokens = batch["text"]
    text = tokens.where(Segment.TEXT)
    other = tokens.input_ids.masked_scatter(text, tokens.input_ids[text].roll(1))
    changed = Tokens(other, tokens.segment_ids)
    blind = ((Segment.MEMORY, Segment.TEXT), (Segment.MEMORY, Segment.PROMPT), (Segment.TEXT, Segment.MEMORY))
    target = tokens.where(Segment.TARGET)

    def states(which, **settings):
        with torch.no_grad():
            return encoder.backbone.hidden_states(which, Attention("causal", **settings))[target]

    assert torch.equal(states(tokens, hide=blind, bottleneck=bos), states(changed, hide=blind, bottleneck=bos))
    assert (states(tokens, hide=blind) - states(changed, hide=blind)).abs().max() > 1e-2
    assert (states(tokens, bottleneck=bos) - states(changed, bottleneck=bos)).abs().max() > 1e-3, "through the memory"


def test_the_memory_is_what_it_is_without_a_target(make_encoder):
    """So the second stage represents what the first one has learnt."""
    encoder, _objective, batch = ready(make_encoder)
    tokens: Tokens = batch["text"]
    with torch.no_grad():
        states = encoder.backbone.hidden_states(tokens, Attention("causal", bottleneck="visible"))
        alone = encoder.memory_states(encoder.tokenize([row["query"] for row in PAIRS]))
    torch.testing.assert_close(states[tokens.where(Segment.MEMORY)].view_as(alone), alone, rtol=0, atol=1e-5)


def test_reconstruction_and_continuation(make_encoder):
    encoder, _, _ = ready(make_encoder)
    rows = [{"text": text} for text in SENTENCES]
    for target in ("text", "rest"):
        objective = build.objective({"type": "bottleneck", "target": target, "min_tokens": 4})
        tokens = objective.collate(rows, encoder, seed=1)["text"]
        again = objective.collate(rows, encoder, seed=1)["text"]
        assert torch.equal(tokens.input_ids, again.input_ids)
        for i, text in enumerate(SENTENCES):
            read, written = (
                encoder.tokenizer.decode(tokens.input_ids[i][tokens.where(segment)[i]])
                for segment in (Segment.TEXT, Segment.TARGET)
            )
            assert (read + written if target == "rest" else written) == f"{text}</s>"
            assert read == text if target == "text" else 0 < len(read) < len(text)
    short = Dataset.from_list([*rows, {"text": "a"}])
    assert len(objective.prepare(short, encoder)) == len(rows)
    with pytest.raises(ValueError, match="none of 1 texts has 8 tokens"):
        objective.prepare(short.select([len(rows)]), encoder)


def test_long_texts_and_targets_are_cut_and_the_memory_is_not(make_encoder):
    encoder = make_encoder(attention="causal", max_length={"query": 16, "document": 12})
    objective = Bottleneck()
    objective.setup(encoder)
    tokens = objective.collate([{"query": "long " * 40, "positive": "long " * 40}], encoder)["text"]
    assert tokens.where(Segment.MEMORY).sum() == 3 and tokens.where(Segment.TARGET).sum() == 12
    assert tokens.input_ids.shape[1] == 28
    assert encoder.tokenizer.eos_token_id not in tokens.input_ids, "an answer that is truncated has no end"
