"""Packed rows: a batch without padding gives the states and gradients of its rows alone, and texts stay apart."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from transformers.integrations import flex_attention as library

from embrew.modeling.embedding.batching import embed_by_length
from embrew.modeling.encoder import Encoder
from embrew.modeling.model import varlen
from embrew.modeling.model.attention import Attention
from embrew.modeling.model.backbone import Backbone
from embrew.modeling.model.compiled import compiled_layers
from embrew.modeling.model.flash import Calls
from embrew.modeling.model.flex import block_mask
from embrew.modeling.model.kernel import attend
from embrew.modeling.model.layers import layers_of
from embrew.modeling.model.packed import Layout
from embrew.modeling.text.tokens import Row, Segment, Tokens
from tests import flash_stand_in
from tests.conftest import ENCODER_FAMILIES, FAMILIES, tiny_model

P, X, M, Y = Segment.PROMPT, Segment.TEXT, Segment.MEMORY, Segment.TARGET
CPU = torch.device("cpu")
PATTERNS = {
    "causal": Attention("causal"),
    "bidirectional": Attention("bidirectional"),
    "memory_causal": Attention("memory_causal"),
    "bottleneck": Attention("causal", bottleneck="visible"),
    "strict": Attention("causal", bottleneck="strict"),
    "hidden": Attention("causal", hide=((Y, X), (Y, P))),
}
SENTENCES = ["a fox", "The quick brown fox jumps over the lazy dog near the river, again and again.", "", "two words"]


def slow(value: str) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


def row(length: int, seed: int, *, target: int) -> Row:
    text = [(seed * 31 + i * 7) % 250 + 3 for i in range(length)]
    after = [(seed * 5 + i) % 200 + 3 for i in range(target)]
    return Row.of([1], P) + Row.of(text, X) + Row.of([270, 271], M) + Row.of(after, Y)


def batch(name: str, *lengths: int) -> list[Row]:
    target = 0 if name == "memory_causal" else 3
    return [row(length, seed, target=target) for seed, length in enumerate(lengths or (4, 21, 1, 9))]


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "_VERIFIED", {})


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    flash_stand_in.install(monkeypatch)


@pytest.fixture
def flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention without `torch.compile`, which takes half a minute here."""
    plain = lambda q, k, v, training=False, **how: flex_attention(q, k, v, **how)  # noqa: E731
    monkeypatch.setattr(library, "compile_friendly_flex_attention", plain)


def with_kernel(family: str, kernel: str, dtype: torch.dtype = torch.float32) -> Backbone:
    backbone = Backbone(tiny_model(family).to(dtype))
    backbone.inner.config._attn_implementation = kernel
    return backbone


def seen_by_layers(backbone: Backbone, run: Callable[[], Any]) -> tuple[Any, set[tuple[int, ...]]]:
    """Return what a call gives, and the shapes that the layers read in its last forward pass."""
    shapes: list[tuple[int, ...]] = []
    first = layers_of(backbone.inner)[0]
    hook = first.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(args[0].shape)), with_kwargs=True
    )
    try:
        return run(), {shapes[-1]}
    finally:
        hook.remove()


def assert_packed(backbone: Backbone, name: str, rows: list[Row], *, tolerance: float = 1e-5) -> None:
    """States are those of each row alone, no padding is computed, and a changed text moves no other at all."""
    tokens, pattern = Tokens.pad(rows), PATTERNS[name]
    states, shapes = seen_by_layers(backbone, lambda: backbone.hidden_states(tokens, pattern))
    total = sum(len(row.ids) for row in rows)
    if backbone.inner.config._attn_implementation == "varlen_flex":
        total = max(256, math.ceil(total / 128) * 128)
    assert shapes == {(1, total, backbone.hidden_size)}, "no padding, but that of the last block"
    kernel, backbone.inner.config._attn_implementation = backbone.inner.config._attn_implementation, "sdpa"
    for states_of, alone in zip(states, rows, strict=True):
        wanted = backbone.hidden_states(Tokens.pad([alone]), pattern)[0]
        assert torch.allclose(states_of[: len(alone.ids)], wanted, atol=tolerance)
        assert not states_of[len(alone.ids) :].any()
    backbone.inner.config._attn_implementation = kernel
    for changed in range(len(rows)):
        ids = tokens.input_ids.clone()
        ids[changed] = (ids[changed] + 1) % 300
        after = backbone.hidden_states(Tokens(ids, tokens.segment_ids), pattern)
        for text in range(len(rows)):
            assert torch.equal(after[text], states[text]) == (text != changed)


@pytest.mark.parametrize("name", [name for name in PATTERNS if name != "hidden"])
@pytest.mark.parametrize("family", ["llama", *(slow(family) for family in ("qwen3", "gpt-neox", "phi"))])
def test_flash_calls_are_rows_alone(family: str, name: str, flash: None) -> None:
    with torch.no_grad():
        assert_packed(with_kernel(family, "varlen_fa"), name, batch(name))


@pytest.mark.parametrize("name", ["causal", "bidirectional"])
@pytest.mark.parametrize("family", ["gemma3", slow("mistral")])
def test_flash_calls_hold_sliding_windows(family: str, name: str, flash: None) -> None:
    with torch.no_grad():
        assert_packed(with_kernel(family, "varlen_fa"), name, batch(name))


def test_flash_leaves_padded_what_it_cannot_express(flash: None) -> None:
    """Hidden pairs; memory or target within a text; gathered positions under a window."""
    for family, name in (("llama", "hidden"), ("gemma3", "memory_causal"), ("mistral", "bottleneck")):
        backbone, tokens = with_kernel(family, "varlen_fa"), Tokens.pad(batch(name))
        with torch.no_grad():
            _, shapes = seen_by_layers(backbone, lambda b=backbone, t=tokens, n=name: b.hidden_states(t, PATTERNS[n]))
        assert shapes == {(*tokens.input_ids.shape, backbone.hidden_size)}
    inside = Row.of([1], P) + Row.of([270, 271], M) + Row.of([9, 8], X)
    layout = Layout.of(Tokens.pad([inside, batch("memory_causal")[0]]).segment_ids)
    assert Calls.of(layout, PATTERNS["memory_causal"], CPU, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("family", FAMILIES)
def test_block_masks_are_rows_alone(family: str, name: str, flex: None) -> None:
    with torch.no_grad():
        assert_packed(with_kernel(family, "varlen_flex"), name, batch(name))


@pytest.mark.slow
def test_compiled_flex_attention_is_right_or_refused() -> None:
    """With torch 2.13, code for a CPU is compiled for the first shape and not for any: found out before it is used."""
    backbone, rows = with_kernel("llama", "varlen_flex"), batch("causal")
    with torch.no_grad():
        states = backbone.hidden_states(Tokens.pad(rows), PATTERNS["causal"])
        backbone.inner.config._attn_implementation = "sdpa"
        for found, alone in zip(states, rows, strict=True):
            wanted = backbone.hidden_states(Tokens.pad([alone]), PATTERNS["causal"])[0]
            assert torch.allclose(found[: len(alone.ids)], wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["causal", slow("bidirectional"), slow("memory_causal"), "bottleneck"])
def test_gradients_are_those_of_rows_alone(name: str, flash: None) -> None:
    """In float64, of every weight; also with activation checkpointing, and through the states of every layer."""
    rows, pattern = batch(name), PATTERNS[name]
    backbone = with_kernel("llama", "varlen_fa", torch.float64).requires_grad_(True)
    width = torch.linspace(-1, 1, backbone.hidden_size, dtype=torch.float64)

    def gradients(states: list[Tensor]) -> list[Tensor]:
        value = sum(((part * width) ** 2).sum() for part in states)
        assert isinstance(value, Tensor)
        found = torch.autograd.grad(value, list(backbone.inner.parameters()), allow_unused=True)
        return [torch.zeros(1) if grad is None else grad for grad in found]

    def real(states: Tensor) -> list[Tensor]:
        return [part[: len(row.ids)] for part, row in zip(states, rows, strict=True)]

    packed, shapes = seen_by_layers(backbone, lambda: real(backbone.hidden_states(Tokens.pad(rows), pattern)))
    assert shapes == {(1, sum(len(row.ids) for row in rows), 32)}
    layered = [part for states in backbone.read_layers(Tokens.pad(rows), pattern, real) for part in states]
    backbone.inner.train().activation_checkpointing_enable()
    again = real(backbone.hidden_states(Tokens.pad(rows), pattern))
    backbone.inner.eval().activation_checkpointing_disable()
    found = [gradients(states) for states in (packed, again, layered)]
    backbone.inner.config._attn_implementation = "sdpa"
    alone = [backbone.hidden_states(Tokens.pad([one]), pattern)[0] for one in rows]
    layers = [backbone.read_layers(Tokens.pad([one]), pattern, lambda states: states[0]) for one in rows]
    wanted = [gradients(alone)] * 2 + [gradients([part for states in layers for part in states])]
    for ours, theirs in zip(found, wanted, strict=True):
        assert max(float(grad.abs().max()) for grad in theirs) > 0.1
        for grad, reference in zip(ours, theirs, strict=True):
            assert torch.allclose(grad, reference, rtol=1e-9, atol=1e-10)


def dense(rows: list[Row], pattern: Attention, prefix: int, window: int | None) -> Tensor:
    """The pattern over a packed row, from that over each row alone; the prefix is part of every row."""
    lengths = [len(row.ids) - prefix for row in rows]
    seen = torch.zeros(sum(lengths), prefix + sum(lengths), dtype=torch.bool)
    begin = 0
    for one, length in zip(rows, lengths, strict=True):
        alone = pattern.visible(Tokens.pad([one]), window)[0]
        seen[begin : begin + length, :prefix] = alone[prefix:, :prefix]
        seen[begin : begin + length, prefix + begin : prefix + begin + length] = alone[prefix:, prefix:]
        begin += length
    return seen


@pytest.mark.parametrize(
    ("name", "prefix", "window"),
    [(name, 0, window) for name in PATTERNS for window in (None, 60)]
    + [("causal", prefix, window) for prefix in (5, 128, 300) for window in (None, 60)],
)
def test_blocks_and_pairs_are_the_dense_pattern(name: str, prefix: int, window: int | None) -> None:
    """Texts within a block, over several blocks, and ending where a block ends."""
    before = Row.of([3] * prefix, P)
    rows = [before + one for one in batch(name, 4, 300, 128 - 21, 1, 128, 500, 2, 7)]
    cut = Tokens.pad([Row(one.ids[prefix:], one.segments[prefix:]) for one in rows])
    pattern = PATTERNS[name]
    found = block_mask(Layout.of(cut.segment_ids, prefix), pattern, CPU, window)
    wanted = dense(rows, pattern, prefix, window)
    at = torch.arange(wanted.shape[0])[:, None], torch.arange(wanted.shape[1])[None]
    pairs = found.mask_mod(torch.tensor(0), torch.tensor(0), *at)
    read, full = (torch.zeros_like(wanted) for _ in range(2))
    for into, counts, columns in (
        (read, found.kv_num_blocks, found.kv_indices),
        (full, found.full_kv_num_blocks, found.full_kv_indices),
    ):
        for line, count in enumerate(counts[0, 0].tolist()):
            for column in columns[0, 0, line, :count].tolist():
                into[128 * line : 128 * line + 128, 128 * column : 128 * column + 128] = True
    assert not (read & full).any()
    assert torch.equal((read & pairs) | full, wanted)
    assert bool(full.any()) == (window is None and name in ("causal", "bidirectional"))
    computed, square = int((read | full).sum()), wanted.numel()
    assert computed < 0.6 * square, "blocks of other texts are not computed"


@pytest.mark.slow
def test_flex_attention_reads_a_block_mask(flex: None) -> None:
    rows = batch("bottleneck", 4, 130, 9)
    layout = Layout.of(Tokens.pad(rows).segment_ids)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, layout.total, 8, generator=generator) for heads in (4, 2, 2))
    found, _ = attend(nn.Module(), query, key, value, block_mask(layout, PATTERNS["bottleneck"], CPU))
    seen = dense(rows, PATTERNS["bottleneck"], 0, None)
    wanted = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)
    assert torch.allclose(found, wanted.transpose(1, 2), atol=1e-6)


def test_calls_by_hand() -> None:
    """Two texts, BOS, two words and a memory token; BOS and a memory token and two targets."""
    rows = [Row([1, 9, 9, 270], [P, X, X, M]), Row([1, 270, 8, 8], [P, M, Y, Y])]
    layout = Layout.of(Tokens.pad(rows).segment_ids)
    (one,) = Calls.of(layout, PATTERNS["causal"], CPU, None).calls
    assert one.query is None and one.key is None and one.causal and one.longest == (4, 4)
    assert [end.tolist() for end in one.ends] == [[0, 4, 8], [0, 4, 8]]
    found = Calls.of(layout, PATTERNS["bottleneck"], CPU, None)
    first, second = found.calls
    assert first.query.tolist() == first.key.tolist() == [0, 1, 2, 3, 4, 5] and first.longest == (4, 4)
    assert second.query.tolist() == [6, 7] and second.key.tolist() == [4, 5, 6, 7] and second.longest == (2, 4)
    assert [end.tolist() for end in second.ends] == [[0, 2], [0, 4]], "the first text has no target"
    assert second.ends[0].dtype == torch.int32
    assert found.source.tolist() == list(range(8))
    assert Calls.of(layout, PATTERNS["strict"], CPU, None).calls[1].key.tolist() == [5, 6, 7]
    after = Layout.of(torch.tensor([[2, 2], [2, 0]]), prefix=3)
    (one,) = Calls.of(after, PATTERNS["causal"], CPU, None).calls
    assert one.query is None and one.key.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 5] and one.longest == (2, 5)
    assert [end.tolist() for end in one.ends] == [[0, 2, 3], [0, 5, 9]]
    assert after.place.tolist() == [3, 4, 3] and after.padded.tolist() == [0, 1, 2]
    assert np.array_equal(after.ends, [0, 2, 3])


def leaking(q: Tensor, k: Tensor, v: Tensor, *ends: Any, **how: Any) -> Tensor:
    """One text for all."""
    whole = torch.tensor([0, len(q)], dtype=torch.int32), torch.tensor([0, len(k)], dtype=torch.int32)
    return flash_stand_in.flash_attn_varlen_func(q, k, v, *whole, len(q), len(k), **how)


def unscaled(*args: Any, softmax_scale: float, **how: Any) -> Tensor:
    return flash_stand_in.flash_attn_varlen_func(*args, softmax_scale=1.1 * softmax_scale, **how)


def detached(q: Tensor, *args: Any, **how: Any) -> Tensor:
    return flash_stand_in.flash_attn_varlen_func(q.detach(), *args, **how)


def whispering(q: Tensor, *args: Any, **how: Any) -> Tensor:
    """Right to within the tolerance, but a text knows of the first one."""
    return flash_stand_in.flash_attn_varlen_func(q, *args, **how) + 1e-6 * q[:1]


def refusing(*args: Any, **how: Any) -> Tensor:
    raise RuntimeError("FlashAttention only supports fp16 and bf16")


@pytest.mark.parametrize("wrong", [leaking, unscaled, detached, whispering, refusing])
def test_a_wrong_kernel_is_found_out(
    wrong: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows stay padded then, and one line says so."""
    flash_stand_in.install(monkeypatch, flash_attn_varlen_func=wrong)
    backbone, tokens = with_kernel("llama", "varlen_fa"), Tokens.pad(batch("causal"))
    with caplog.at_level(logging.WARNING):
        states, shapes = seen_by_layers(backbone, lambda: backbone.hidden_states(tokens, PATTERNS["causal"]))
        backbone.hidden_states(tokens, PATTERNS["causal"])
    assert shapes == {(*tokens.input_ids.shape, 32)}
    assert [record.getMessage() for record in caplog.records] == [
        "LlamaModel: rows packed by flash-attention do not give the states of padded rows (causal attention with "
        "gradients), so it is not used"
    ]
    backbone.inner.config._attn_implementation = "sdpa"
    assert torch.equal(states, backbone.hidden_states(tokens, PATTERNS["causal"]))


@pytest.mark.parametrize("name", ["varlen", "varlen_fa", "embrew_bottleneck"])
def test_without_a_kernel_rows_are_padded_as_by_sdpa(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`varlen` never packs on a CPU, and flash-attention is not installed."""
    monkeypatch.setattr(varlen, "has_flash", lambda: False)
    if name == "varlen":
        flash_stand_in.install(monkeypatch)
    tokens, states = Tokens.pad(batch("bidirectional")), []
    backbone = with_kernel("llama", name)
    for kernel in (name, "sdpa"):
        backbone.inner.config._attn_implementation = kernel
        for pattern in (PATTERNS[key] for key in ("causal", "bidirectional", "memory_causal", "hidden")):
            with torch.no_grad():
                states.append(backbone.hidden_states(tokens, pattern))
    half = len(states) // 2
    assert all(torch.equal(one, other) for one, other in zip(states[:half], states[half:], strict=True))


@pytest.fixture
def packing(flash: None, make_encoder: Callable[..., Encoder]) -> Callable[..., tuple[Encoder, Encoder]]:
    def made(family: str, **settings: Any) -> tuple[Encoder, Encoder]:
        ours, theirs = (make_encoder(family, **settings) for _ in range(2))
        ours.backbone.inner.config._attn_implementation = "varlen_fa"
        return ours, theirs

    return made


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling": "mean"},
        {"pooling": "last"},
        {"pooling": "mean", "attention": "bidirectional"},
        {"pooling": {"mode": "mean", "over": "memory"}, "memory_tokens": 2, "template": "{text}{memory}"},
    ],
    ids=["mean", "last", "bidirectional", "memory"],
)
def test_vectors(settings: dict[str, Any], packing: Callable[..., tuple[Encoder, Encoder]]) -> None:
    ours, theirs = packing("llama", **settings)
    found, shapes = seen_by_layers(ours.backbone, lambda: ours.encode(SENTENCES))
    assert shapes == {(1, sum(len(row.ids) for row in ours.template.rows(SENTENCES)), 32)}
    assert abs(found - theirs.encode(SENTENCES)).max() < 2e-6
    tokens = ours.tokens(SENTENCES)
    assert torch.allclose(
        embed_by_length(ours, tokens, ours.cost), embed_by_length(theirs, tokens, theirs.cost), atol=2e-6
    )
    assert torch.allclose(ours.layers(tokens), theirs.layers(tokens), atol=2e-6)
    assert torch.allclose(ours(tokens, num_layers=1), theirs(tokens, num_layers=1), atol=2e-6)


def test_vectors_after_a_prompt_that_is_computed_once(packing: Callable[..., tuple[Encoder, Encoder]]) -> None:
    """Every text reads the kept keys and values of the prompt, and its own."""
    ours, theirs = packing("qwen3", template="{instruction}{text}", memory_tokens=0, pooling="mean", attention="causal")
    prompt = "Given a question about animals, retrieve sentences that answer it: "
    found, shapes = seen_by_layers(ours.backbone, lambda: ours.encode(SENTENCES, prompt=prompt))
    assert ours.prefixes.reuse.misses == 1
    rows = [len(row.ids) for row in ours.template.rows(SENTENCES, instruction=prompt)]
    alone = len(ours.template.rows([""], instruction=prompt)[0].ids)
    (shape,) = shapes
    assert shape[0] == 1 and sum(rows) - len(rows) * alone <= shape[1] < sum(rows) - len(rows) * (alone - 3)
    assert abs(found - theirs.encode(SENTENCES, prompt=prompt)).max() < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["", "Given a question about animals, retrieve sentences that answer it: "])
def test_vectors_by_flex_attention(prompt: str, flex: None, make_encoder: Callable[..., Encoder]) -> None:
    ours, theirs = (
        make_encoder("mistral", template="{instruction}{text}", memory_tokens=0, pooling="mean", attention="causal")
        for _ in range(2)
    )
    ours.backbone.inner.config._attn_implementation = "varlen_flex"
    found, ((rows, _, _),) = seen_by_layers(ours.backbone, lambda: ours.encode(SENTENCES, prompt=prompt))
    assert rows == 1 and abs(found - theirs.encode(SENTENCES, prompt=prompt)).max() < 2e-6


@pytest.mark.parametrize("family", [f if f in ("roberta", "modernbert") else slow(f) for f in ENCODER_FAMILIES])
def test_encoders(family: str, flash: None, encoder_folder: Callable[[str], Path]) -> None:
    """The packed row is longer than the model has positions. MPNet computes attention itself and cannot pack."""
    if family == "mpnet":
        with pytest.raises(ValueError, match="does not follow it"):
            Encoder.from_pretrained(encoder_folder(family), max_length=100, attn_implementation="varlen_fa")
        return
    ours = Encoder.from_pretrained(encoder_folder(family), max_length=100, attn_implementation="varlen_fa")
    theirs = Encoder.from_pretrained(encoder_folder(family), max_length=100)
    tokens = ours.tokens([*SENTENCES, *(SENTENCES[1][: 10 + 3 * i] for i in range(12))])
    with torch.no_grad():
        found, ((rows, width, _),) = seen_by_layers(ours.backbone, lambda: ours(tokens))
        assert torch.allclose(found, theirs(tokens), atol=2e-6)
    assert rows == 1 and width == int(tokens.attention_mask.sum()) > ours.backbone.max_positions


def test_dropout_and_mixed_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention dropout reaches flash-attention in training only; autocast's dtype reaches it too."""
    calls: list[tuple[torch.dtype, float]] = []

    def recorded(q: Tensor, *args: Any, dropout_p: float, **how: Any) -> Tensor:
        calls.append((q.dtype, dropout_p))
        return flash_stand_in.flash_attn_varlen_func(q, *args, dropout_p=dropout_p, **how)

    flash_stand_in.install(monkeypatch, flash_attn_varlen_func=recorded)
    backbone, tokens = with_kernel("llama", "varlen_fa"), Tokens.pad(batch("causal"))
    backbone.set_attention_dropout(0.25)
    for training in (False, True):
        backbone.train(training)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            states = backbone.hidden_states(tokens, PATTERNS["causal"])
        assert calls[-1] == (torch.bfloat16, 0.25 * training)
    assert torch.isfinite(states).all()
    backbone.inner.config._attn_implementation = "varlen_flex"  # which has no dropout
    with torch.no_grad():
        _, shapes = seen_by_layers(backbone, lambda: backbone.hidden_states(tokens, PATTERNS["causal"]))
    assert shapes == {(*tokens.input_ids.shape, 32)}


def test_which_kernel_is_opened(model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """By default rows are packed on CUDA only; a named kernel stays as it is, also after saving and opening."""
    folder = model_folder("llama")
    name = lambda encoder: encoder.backbone.inner.config._attn_implementation  # noqa: E731
    assert name(Encoder.from_pretrained(folder)) == "sdpa"
    assert name(Encoder.from_pretrained(folder, attn_implementation="varlen_flex")) == "varlen_flex"
    with pytest.raises(ValueError, match="varlen_fast"):
        Encoder.from_pretrained(folder, attn_implementation="varlen_fast")
    model = Encoder.from_pretrained(folder).backbone.inner
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    for kernel, opened in (("sdpa", "varlen"), ("eager", "eager"), ("varlen_fa", "varlen_fa")):
        model.config._attn_implementation = kernel
        varlen.use_varlen(model)
        assert model.config._attn_implementation == opened
    monkeypatch.setattr(varlen, "has_flash", lambda: False)
    model.config._attn_implementation = "varlen"
    assert varlen.kernels_of(model) == ("flex",)
    flash_stand_in.install(monkeypatch)
    assert varlen.kernels_of(model) == ("flash", "flex")
    with compiled_layers(model):
        assert varlen.kernels_of(model) == ()
    model.config._attn_implementation = "sdpa"
    assert varlen.kernels_of(model) == ()
