"""The plan of batches, running out of memory, tokenising ahead."""

from __future__ import annotations

import logging
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embrew.encoder import Encoder
from embrew.model.batching import WINDOW, Cost, compute_ahead, embed_by_length, embed_together, plan_batches
from embrew.storage.base_model import pick_dtype, saved_dtype, supports_natively
from embrew.text.tokens import Segment, Tokens
from tests.conftest import SENTENCES

TEXTS = [f"{sentence * (1 + i % 3)} {i}" for i in range(8) for sentence in SENTENCES]
CPU = torch.device("cpu")


def time_of(lengths, batches, overhead):
    """Of a split by the model of its time."""
    return sum(overhead + len(batch) * max(lengths[i] for i in batch) for batch in batches)


@settings(max_examples=500, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 600), max_size=300),
    batch_size=st.integers(1, 64),
    batch_tokens=st.none() | st.integers(1, 20_000),
    overhead=st.sampled_from([1.0, 25.0, 100.0, 8192.0]),
)
def test_all_rows_once_no_batch_empty_and_within_the_budget(lengths, batch_size, batch_tokens, overhead):
    batches = plan_batches(lengths, batch_size=batch_size, batch_tokens=batch_tokens, cost=Cost(overhead))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[i] for i in batch)
        assert len(batch) == 1 or (len(batch) <= batch_size if batch_tokens is None else padded <= batch_tokens)


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12) | st.integers(1, 60), min_size=1, max_size=30),
    batch_size=st.integers(1, 12),
    batch_tokens=st.none() | st.integers(1, 200),
    overhead=st.sampled_from([1.0, 7.0, 40.0, 200.0]),
)
def test_no_split_of_the_sorted_rows_takes_less_time(lengths, batch_size, batch_tokens, overhead):
    """The oracle tries every size of every batch, from the shortest row on."""
    ordered = sorted(lengths, reverse=True)
    least = [0.0] * (len(ordered) + 1)
    for i in reversed(range(len(ordered))):
        most = batch_size if batch_tokens is None else max(1, batch_tokens // ordered[i])
        sizes = range(1, min(most, len(ordered) - i) + 1)
        least[i] = min(overhead + size * ordered[i] + least[i + size] for size in sizes)
    batches = plan_batches(lengths, batch_size=batch_size, batch_tokens=batch_tokens, cost=Cost(overhead))
    assert time_of(lengths, batches, overhead) == pytest.approx(least[0])


def small_memory(encoder: Encoder, limit: int, monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    """An encoder that fails on more than `limit` padded tokens; the sizes it was asked for."""
    forward, sizes = encoder.forward, []

    def limited(tokens, **options):
        sizes.append(tokens.input_ids.numel())
        if sizes[-1] > limit:
            raise error
        return forward(tokens, **options)

    monkeypatch.setattr(encoder, "forward", limited)
    return sizes


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried …"), RuntimeError("MPS backend out of memory")]
)
def test_out_of_memory_halves_the_batch(error, make_encoder, monkeypatch, caplog):
    encoder = make_encoder(max_length=64)
    expected = encoder.encode(TEXTS)
    sizes = small_memory(encoder, 300, monkeypatch, error)
    with caplog.at_level(logging.WARNING):
        assert np.abs(encoder.encode(TEXTS, batch_tokens=1000) - expected).max() <= 2e-6
    failed = [size for size in sizes if size > 300]
    assert failed and all(later <= size / 2 for size, later in pairwise(failed)), "no size twice"
    (record,) = [r for r in caplog.records if "out of memory" in r.message]
    assert f"at most {failed[-1] // 2} padded tokens" in record.message and failed[-1] // 2 <= 300


def test_any_other_error_is_left_as_it_is(make_encoder, monkeypatch, caplog):
    encoder = make_encoder(max_length=64)
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    sizes = small_memory(encoder, 300, monkeypatch, error)
    with pytest.raises(RuntimeError) as raised:
        encoder.encode(TEXTS, batch_tokens=1000)
    assert raised.value is error and len(sizes) == 1 and not caplog.records


def test_errors_of_the_thread_arrive():
    def items():
        yield 1
        raise ValueError("line 2")

    stream = compute_ahead(items())
    assert next(stream) == 1
    with pytest.raises(ValueError, match="line 2"):
        next(stream)


def test_windows_tokenised_ahead_give_the_same(make_encoder, monkeypatch):
    from embrew.model import batching

    encoder = make_encoder(max_length=64)
    expected = encoder.encode(TEXTS)
    monkeypatch.setattr(batching, "WINDOW", 7)
    assert len(TEXTS) < WINDOW
    options = {"batch_size": 4, "batch_tokens": None, "show_progress_bar": False, "tokenize_ahead": True}

    def embed(tokens, _):
        return torch.nn.functional.normalize(encoder(tokens), dim=-1)

    def rows(start, stop):
        return encoder.template.rows(TEXTS[start:stop], max_length=64)

    with torch.inference_mode():
        vectors = batching.encode_rows(rows, len(TEXTS), embed, 32, **options)
    assert np.abs(vectors.numpy() - expected).max() <= 2e-6


@pytest.mark.parametrize(
    ("capabilities", "has"), [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx2": True}, False)]
)
def test_bfloat16_where_the_processor_has_it(capabilities, has, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert supports_natively(torch.bfloat16, CPU) is has and not supports_natively(torch.float16, CPU)
    assert supports_natively(torch.float16, torch.device("cuda")) and supports_natively(torch.float32, CPU)
    if has:
        assert pick_dtype("bfloat16", CPU) == saved_dtype("bfloat16", CPU) == torch.bfloat16
    else:
        with pytest.raises(ValueError, match="'bfloat16': this CPU emulates bfloat16"):
            pick_dtype("bfloat16", CPU)
        assert saved_dtype("bfloat16", CPU) == torch.float32, "a saved encoder opens all the same"


@pytest.mark.parametrize(("family", "kernel"), [("gemma3", "sdpa"), ("gpt-neox", "eager")])
def test_causal_rows_need_no_mask(family, kernel, make_encoder):
    """Padding on the right is behind every real position: with the mask and without it, the same bits."""
    from embrew.model.layers import with_configuration

    encoder = make_encoder(family, memory_tokens=0, attention="causal", attn_implementation=kernel)
    tokens = encoder.tokenize(["short", *SENTENCES])
    real = tokens.attention_mask.bool()
    assert not real.all()
    with torch.inference_mode():
        backbone = encoder.backbone
        masked = with_configuration(backbone.inner, is_causal=True)(
            inputs_embeds=backbone.embed(tokens), attention_mask=tokens.attention_mask, use_cache=False
        ).last_hidden_state
        assert torch.equal(encoder.hidden_states(tokens)[real], masked[real])


def test_groups_of_similar_length_give_the_vectors_of_one_batch(make_encoder):
    """In any order of the rows, with equal gradients, and with far fewer positions."""
    encoder = make_encoder(lora={})
    texts = [("word " * n).strip() for n in (90, 1, 40, 2, 120, 3, 41, 1, 2, 3, 60, 1)]
    tokens = encoder.tokenize(texts)
    seen = []

    def embed(part):
        seen.append(part.input_ids.numel())
        return encoder(part)

    expected = encoder(tokens)
    found = embed_by_length(embed, tokens, Cost(40))
    assert len(seen) > 1 and sum(seen) < 0.7 * tokens.input_ids.numel()
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    weights = [p for p in encoder.parameters() if p.requires_grad]
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    wanted = torch.autograd.grad((expected * direction).sum(), weights)
    for one, other in zip(torch.autograd.grad((found * direction).sum(), weights), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_roles_are_embedded_in_one_pass():
    """Each gets the vectors of its own rows, in their order; a batch with given vectors is left to its own pass."""
    rows = {"query": [3, 1], "positive": [5, 2, 5, 1]}
    batches, passes = {}, []
    for role, lengths in rows.items():
        ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        for i, length in enumerate(lengths):
            ids[i, :length] = torch.arange(1, length + 1) + 100 * i + (10 if role == "query" else 0)
        batches[role] = Tokens(ids, torch.where(ids > 0, Segment.TEXT, Segment.PAD))
    given = batches["query"].with_soft(torch.zeros(2, 1, 4))

    def embed(tokens):
        passes.append(len(tokens))
        return torch.stack([tokens.input_ids.sum(1), tokens.attention_mask.sum(1)], 1).float()

    found = embed_together(embed, {**batches, "negative": given}, Cost(8192))
    assert passes == [6] and list(found) == ["query", "positive"]
    for role, tokens in batches.items():
        assert torch.equal(found[role], torch.stack([tokens.input_ids.sum(1), torch.tensor(rows[role])], 1).float())
    assert embed_together(embed, {"negative": given}, Cost(40)) == {}


def test_batches_are_by_tokens_unless_a_number_of_rows_is_given(make_encoder, monkeypatch):
    """2,048 padded tokens on a CPU; 8 rows as in Sentence-Transformers; both give the same vectors."""
    encoder = make_encoder()
    forward, shapes = encoder.forward, []
    monkeypatch.setattr(
        encoder, "forward", lambda tokens, **how: shapes.append(tuple(tokens.input_ids.shape)) or forward(tokens, **how)
    )
    by_tokens = encoder.encode(TEXTS * 5)
    assert max(rows for rows, _ in shapes) > 32 and max(rows * width for rows, width in shapes) <= 2048
    shapes.clear()
    by_rows = encoder.encode(TEXTS * 5, batch_size=8)
    assert max(rows for rows, _ in shapes) == 8
    np.testing.assert_allclose(by_rows, by_tokens, atol=2e-6)
