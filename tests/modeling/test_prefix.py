"""A beginning that all rows share is computed once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from embrew.modeling import prefix as module
from embrew.modeling.encoder import Encoder
from embrew.modeling.pooling import Pooling
from embrew.modeling.prefix import Prefix, shared_beginning
from embrew.modeling.tokens import Row, Segment
from tests.conftest import FAMILIES, SENTENCES

WORDS = "Read this text with care, and say in a single word what it means. "
TEXTS = [*SENTENCES, "a", "Read this", "🦆", "", SENTENCES[0]]


def plain(encoder: Encoder, texts: list[str], monkeypatch: pytest.MonkeyPatch, **options: object) -> np.ndarray:
    with monkeypatch.context() as patch:
        patch.setattr(module, "WORTHWHILE", 10**9)
        return encoder.encode(texts, **options)


def counted(encoder: Encoder) -> list[int]:
    """Tokens that the first layer runs, from now on."""
    seen: list[int] = []
    encoder.backbone.inner.layers[0].register_forward_hook(lambda *args: seen.append(args[1][0][..., 0].numel()))
    return seen


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
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
def test_every_pooling_and_memory_tokens(mode, make_encoder: Callable[..., Encoder], monkeypatch):
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
    shared = shared_beginning(rows)
    assert shared > 30
    seen = counted(encoder)
    encoder.encode(TEXTS, batch_size=3)
    rest = sum(len(row.ids) - shared for row in rows)
    assert seen[0] == shared and sum(seen[1:]) < 1.6 * rest  # padded a little, as any batch
    assert len(seen) >= 1 + len(TEXTS) // 3


def test_two_templates_take_turns(make_encoder, monkeypatch):
    encoder = make_encoder(
        template=[WORDS + "{text}", "Another beginning, no less long than the first one: {text}"],
        memory_tokens=0,
        attention="causal",
        pooling="last",
    )
    wanted = plain(encoder, TEXTS, monkeypatch)
    assert np.abs(encoder.encode(TEXTS, batch_size=3) - wanted).max() < 5e-6


def test_a_bidirectional_model_reads_it_anew_with_every_text(make_encoder):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="bidirectional", pooling="last")
    seen = counted(encoder)
    encoder.encode(TEXTS, batch_size=20)
    assert sum(seen) >= sum(len(row.ids) for row in encoder.template.rows(TEXTS))
    tokens = encoder.tokens(TEXTS)
    with pytest.raises(ValueError, match="under causal attention only, not bidirectional"):
        encoder.backbone.hidden_states(tokens, encoder.attention, prefix=Prefix(), shared=20)


def test_what_is_shared():
    def row(words: int, text: list[int]) -> Row:
        return Row.of(range(words), Segment.PROMPT) + Row.of(text, Segment.TEXT)

    assert shared_beginning([row(30, [1]), row(30, [2, 3])]) == 30
    assert shared_beginning([row(30, [40]), row(30, [40])]) == 30  # equal texts are no prompt
    assert shared_beginning([row(30, [1]), row(30, [])]) == 29  # a row keeps a token of its own
    assert shared_beginning([row(30, [1]), Row.of([*range(20), 99], Segment.PROMPT)]) == 20
    assert shared_beginning([row(10, [1]), row(10, [2])]) == 0
    assert shared_beginning([row(30, [1])]) == 0
    assert shared_beginning([]) == 0
