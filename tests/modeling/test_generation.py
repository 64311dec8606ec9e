"""Writing from the bottleneck: what a plain loop over the dense mask writes, whatever the batch, family and number."""

from __future__ import annotations

import pytest
import torch

from embrew.evaluation.targets import target_rows, target_scores
from embrew.model.attention import Attention
from embrew.text.tokens import Row, Segment, Tokens
from tests.conftest import FAMILIES, SENTENCES, by_default

TEXTS = [SENTENCES[0], "short", SENTENCES[3] + " " + SENTENCES[1], ""]
WINDOWED = ("mistral", "gemma3")  # 8 tokens, which every row here passes


def naive(encoder, text, *, source="memory", bos="visible", steps=12):
    """The likeliest next token, again and again, each time from a whole pass under the mask."""
    attention = Attention("causal", bottleneck=bos) if source == "memory" else Attention("causal")
    (row,) = encoder.template.rows([text])
    ids: list[int] = []
    with torch.no_grad():
        for _ in range(steps):
            tokens = Tokens.pad([row + Row.labelled(ids, Segment.TARGET)])
            states = encoder.backbone.hidden_states(tokens, attention)
            ids.append(int(encoder.backbone.causal_lm.lm_head(states)[0, -1].argmax()))
            if ids[-1] == encoder.tokenizer.eos_token_id:
                break
    return encoder.tokenizer.decode(ids, skip_special_tokens=True)


def head(encoder):
    """GPT-NeoX calls its head otherwise."""
    lm = encoder.backbone.causal_lm
    if not hasattr(lm, "lm_head"):
        lm.lm_head = lm.get_output_embeddings()
    return encoder


@pytest.mark.parametrize("bos", ["visible", "strict"])
@pytest.mark.parametrize("family", by_default(["qwen2"], [family for family in FAMILIES if family not in WINDOWED]))
def test_greedy_is_the_naive_loop(family, bos, make_encoder):
    encoder = head(make_encoder(family, lora={}, attention="causal"))
    wanted = [naive(encoder, text, bos=bos) for text in TEXTS]
    assert bos == "strict" or len(set(wanted)) > 1, "the memory says which text it was"
    for batch_size in (1, 4):
        assert encoder.generate(TEXTS, bos=bos, max_new_tokens=12, batch_size=batch_size) == wanted
    assert encoder.generate(TEXTS[0], bos=bos, max_new_tokens=12) == wanted[0]


@pytest.mark.parametrize("family", by_default(["gpt-neox"], ["llama", "gpt-neox"]))
def test_different_numbers_of_memory_tokens_in_a_batch(family, make_encoder):
    encoder = head(make_encoder(family, lora={}, attention="causal", memory_ratio=20))
    counts = [row.segments.count(Segment.MEMORY) for row in encoder.template.rows(TEXTS)]
    assert len(set(counts)) > 1
    assert encoder.generate(TEXTS, max_new_tokens=12) == [naive(encoder, text) for text in TEXTS]


@pytest.mark.parametrize(
    ("family", "memory_tokens"),
    by_default(
        [("llama", 3), ("mistral", 0), ("gemma3", 3)],
        [(family, count) for family in ("llama", "mistral", "gemma3", "phi") for count in (0, 3)],
    ),
)
def test_from_the_visible_text(family, memory_tokens, make_encoder):
    """The baselines, and an encoder with memory tokens whose text stays visible; windows are the model's own."""
    encoder = head(make_encoder(family, lora={}, attention="causal", memory_tokens=memory_tokens))
    wanted = [naive(encoder, text, source="text") for text in TEXTS[:3]]
    assert encoder.generate(TEXTS[:3], source="text", max_new_tokens=12) == wanted


def test_only_the_memory_s_keys_and_values_are_kept(make_encoder, monkeypatch):
    """BOS and three memory tokens, then one more for every token that was written."""
    encoder = make_encoder(attention="causal")
    widths = []
    forward = type(encoder.backbone.causal_lm).forward

    def watched(self, *args, **kwargs):
        widths.append(kwargs["past_key_values"].get_seq_length())
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(encoder.backbone.causal_lm), "forward", watched)
    encoder.generate(TEXTS[:3], max_new_tokens=5, min_new_tokens=5)
    assert widths == [0, 4, 5, 6, 7]
    assert not encoder.backbone.causal_lm._forward_hooks and not encoder.backbone.causal_lm._forward_pre_hooks


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"memory_tokens": 0}, {}, "has no bottleneck: .* give source='text'"),
        ({"template": "{text}{memory}{eos}"}, {}, "has no bottleneck"),
        ({"attention": "bidirectional"}, {}, "attention=bidirectional: a bidirectional model does not generate"),
        ({}, {"source": "vector"}, "source='vector'; choose from memory, text"),
        ({}, {"use_cache": False}, "use_cache is not allowed here"),
        ({}, {"max_length": 20}, "max_length is not allowed here: .*; give max_new_tokens"),
        ({"family": "mistral"}, {}, "exceed the model's attention window of 8"),
    ],
)
def test_what_it_needs(change, options, message, make_encoder):
    settings = {"attention": "causal", **change}
    encoder = make_encoder(settings.pop("family", "llama"), **settings)
    with pytest.raises(ValueError, match=message):
        encoder.generate(TEXTS[:1], **options)


def test_an_encoder_only_model_does_not_write(encoder_folder):
    from embrew.encoder import Encoder

    with pytest.raises(ValueError, match="writing reads next-token predictions"):
        Encoder.from_pretrained(encoder_folder("bert"), max_length=64).generate("a", source="text")


@pytest.mark.parametrize("source", ["memory", "text"])
def test_scores_of_targets(source, make_encoder):
    """Token by token what a loop over single rows gives; the mean is what training minimises."""
    from embrew.methods import Bottleneck

    encoder = make_encoder(lora={"lora_dropout": 0.0}, attention="causal")
    targets = ["a target", "another one that is longer", "x"]
    rows = target_rows(encoder, TEXTS[:3], targets, instruction="", max_tokens=512, limit=512)
    found = list(target_scores(encoder, rows, source=source, batch_tokens=64))
    attention = Attention("causal", bottleneck="visible") if source == "memory" else Attention("causal")
    for row, target, (losses, right) in zip(rows, targets, found, strict=True):
        tokens = Tokens.pad([row])
        labels = tokens.input_ids[tokens.where(Segment.TARGET)]
        assert encoder.tokenizer.decode(labels) == f"{target}</s>"
        with torch.no_grad():
            states = encoder.backbone.hidden_states(tokens, attention)
            logits = encoder.backbone.causal_lm.lm_head(states)[0, -len(labels) - 1 : -1]
        wanted = -logits.log_softmax(-1)[torch.arange(len(labels)), labels]
        torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-5)
        assert torch.equal(right, logits.argmax(-1) == labels)
    if source == "memory":
        objective = Bottleneck()
        pairs = [{"query": text, "positive": target} for text, target in zip(TEXTS, targets, strict=False)]
        objective.setup(encoder)
        loss = objective(encoder, objective.collate(pairs, encoder))["loss"]
        assert torch.cat([losses for losses, _ in found]).mean().item() == pytest.approx(loss.item(), rel=1e-5)
