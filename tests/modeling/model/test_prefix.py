"""A beginning that all rows share is computed once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from embrew.encoder import Encoder
from embrew.model import prefix as module
from embrew.model.prefix import PrefixCache, shared_prefix
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Row, Segment, Tokens
from tests.conftest import DIFFERENT, FAMILIES, SENTENCES, by_default

WORDS = "Read this text with care, and say in a single word what it means. "
TEXTS = [*SENTENCES, "a", "Read this", "🦆", "", SENTENCES[0]]


def plain(encoder: Encoder, texts: list[str], monkeypatch: pytest.MonkeyPatch, **options: object) -> np.ndarray:
    with monkeypatch.context() as patch:
        patch.setattr(module, "WORTHWHILE", 10**9)
        return encoder.encode(texts, **options)


def counted(encoder: Encoder) -> list[int]:
    """Tokens that the first layer runs, from now on."""
    seen: list[int] = []
    layer = encoder.backbone.inner.layers[0]
    forward = layer.forward

    def counting(states: torch.Tensor, *args: object, **options: object) -> object:
        seen.append(states[..., 0].numel())
        return forward(states, *args, **options)

    layer.forward = counting
    return seen


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
def test_the_same_vectors_on_every_family(family, kernel, make_encoder, monkeypatch):
    encoder = make_encoder(
        family,
        template=WORDS + "{text} End.",
        memory_tokens=0,
        attention="causal",
        attn_implementation=kernel,
        pooling=Pooling("mean", "all"),
    )
    for options in ({"batch_size": 4}, {"batch_tokens": 64}, {"num_layers": 1}):
        wanted = plain(encoder, TEXTS, monkeypatch, **options)
        assert np.abs(encoder.encode(TEXTS, **options) - wanted).max() < 5e-6, options


@pytest.mark.parametrize("mode", ["last", "mean", "weighted_mean"])
def test_every_pooling_and_memory_tokens(mode, make_encoder, monkeypatch):
    for settings in (
        {"memory_tokens": 3, "template": WORDS + "{text}{memory}", "pooling": Pooling(mode, "memory")},
        {"memory_tokens": 0, "template": WORDS + "{instruction}{text}", "pooling": Pooling(mode, "text")},
    ):
        encoder = make_encoder(lora={}, attention="causal", **settings)
        wanted = plain(encoder, TEXTS, monkeypatch)
        assert np.abs(encoder.encode(TEXTS) - wanted).max() < 5e-6


def test_it_is_computed_once_for_a_call(make_encoder):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="causal", pooling="last")
    rows = encoder.template.rows(TEXTS)
    shared = shared_prefix(rows)
    assert shared > 30
    seen = counted(encoder)
    encoder.encode(TEXTS, batch_size=3)
    rest = sum(len(row.ids) - shared for row in rows)
    assert seen[0] == shared and sum(seen[1:]) < 1.6 * rest  # padded a little, as any batch
    assert len(seen) >= 1 + len(TEXTS) // 3


def test_a_bidirectional_model_reads_it_anew_with_every_text(make_encoder):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="bidirectional", pooling="last")
    seen = counted(encoder)
    encoder.encode(TEXTS, batch_size=20)
    assert sum(seen) >= sum(len(row.ids) for row in encoder.template.rows(TEXTS))
    tokens = encoder.tokenize(TEXTS)
    with pytest.raises(ValueError, match="under causal attention only, not bidirectional"):
        encoder.backbone.split_states(tokens, encoder.attention, PrefixCache().shared_by(tokens, 20))


def test_vectors_in_the_beginning(make_encoder):
    """A table of vectors, whose rows the ids of their places count: as one pass over whole rows gives it."""
    encoder = make_encoder(template="{text}", memory_tokens=0, attention="causal", pooling="mean", lora={})
    generator = torch.Generator().manual_seed(5)
    tables = [torch.randn(8, 32, generator=generator) for _ in range(2)]
    begin = Row.labelled([1], Segment.PROMPT)
    for number in range(8):
        begin += Row.labelled([50, 51], Segment.PROMPT) + Row.labelled([7 - number], Segment.SOFT)
    rows = [
        begin + Row.labelled(encoder.tokenizer(text, add_special_tokens=False).input_ids, Segment.TEXT)
        for text in SENTENCES
    ]
    assert shared_prefix(rows) == len(begin.ids) == 25
    prefix, found = PrefixCache(), []
    with torch.no_grad():
        for table in (*tables, tables[0]):
            tokens = Tokens.pad(rows).with_soft(table)
            wanted = encoder(tokens)
            assert (encoder(tokens, shared=prefix.shared_by(tokens, 25)) - wanted).abs().max() < 5e-6
            found.append(wanted)
    assert (found[0] - found[1]).abs().max() > 0.01
    assert len(prefix._entries) == 2
    with pytest.raises(ValueError, match="vectors that differ between rows cannot be shared"):
        prefix.shared_by(Tokens.pad(rows).with_soft(torch.zeros(5, 8, 32)), 25)


def test_it_is_kept_between_calls_only_where_the_model_is_fixed(make_encoder):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="causal", pooling="mean", lora={})
    shared = shared_prefix(encoder.template.rows(TEXTS))
    seen = counted(encoder)
    first = encoder.encode(TEXTS)
    encoder.encode(TEXTS)
    assert seen.count(shared) == 2
    with encoder.fixed() as prefix:
        encoder.encode(TEXTS)
        seen.clear()
        assert np.array_equal(encoder.encode(TEXTS), first)
        with encoder.fixed() as inner:
            assert inner is prefix
            encoder.encode(SENTENCES[0])  # the prefix of one row alone is another
        assert shared not in seen and (prefix.hits, prefix.misses) == (1, 2)
    encoder.encode(TEXTS)
    assert shared in seen


CHANGES: dict[str, Callable[[Encoder], object]] = {
    "training": lambda encoder: encoder.train(),
    "loading weights": lambda encoder: encoder.load_state_dict(encoder.state_dict()),
    "merging an adapter": lambda encoder: encoder.merge_adapter(),
    "adding an adapter": lambda encoder: encoder.backbone.add_lora({"r": 2}),
    "switching the adapter off": lambda encoder: encoder.backbone.adapter_off().__enter__(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_fixed_model_is_not_changed(what, make_encoder):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="causal", pooling="mean", lora={})
    with encoder.fixed(), pytest.raises(RuntimeError, match=rf"{what} within encoder\.fixed\(\)"):
        CHANGES[what](encoder)
    vectors = encoder.encode(TEXTS)
    encoder.train()
    assert np.array_equal(encoder.encode(TEXTS), vectors)


def test_a_vector_does_not_depend_on_what_was_embedded_before(make_encoder):
    make = partial(make_encoder, template=WORDS + "{instruction}{text}", memory_tokens=0, attention="causal")
    encoder = make()
    for prompt in ("Find: ", "Find it now, and do not wait: ", ""):
        for texts in (TEXTS, SENTENCES[:2], SENTENCES[0], TEXTS):
            assert np.array_equal(encoder.encode(texts, prompt=prompt), make().encode(texts, prompt=prompt))
