"""Who reads whom: changing one token moves exactly the positions that may read it, on every family."""

from __future__ import annotations

import pytest
import torch

from embrew.model.attention import Attention
from embrew.model.backbone import Backbone
from embrew.text.tokens import Row, Segment, Tokens
from tests.conftest import CONFIGS, DIFFERENT, FAMILIES, by_default, tiny_model

P, X, M, Y = Segment.PROMPT, Segment.TEXT, Segment.MEMORY, Segment.TARGET
LONG = Row.labelled([1], P) + Row.labelled(range(20, 30), X) + Row.labelled([30, 31], M) + Row.labelled([40, 41, 42], Y)
SHORT = Row.labelled([1], P) + Row.labelled(range(50, 54), X) + Row.labelled([30, 31], M) + Row.labelled([43], Y)
PATTERNS = {
    "causal": Attention("causal"),
    "bidirectional": Attention("bidirectional"),
    "memory_causal": Attention("memory_causal"),
    "wall": Attention("causal", hide=((Y, X), (Y, P))),
}


def expected(pattern: Attention, row: Row, window: int | None) -> torch.Tensor:
    """The definition, written as loops: reader i, read j."""
    seen = torch.zeros(len(row.ids), len(row.ids), dtype=torch.bool)
    for i, reader in enumerate(row.segments):
        for j, read in enumerate(row.segments):
            allowed = True
            if pattern.mode == "causal":
                allowed = j <= i
            elif pattern.mode == "memory_causal" and read == M:
                allowed = j <= i
            if (reader, read) in pattern.hide:
                allowed = False
            if window is not None:
                allowed = allowed and (i - j < window if pattern.mode == "causal" else abs(i - j) <= window)
            seen[i, j] = allowed or i == j
    return seen


QUICK = {("llama", "sdpa"), ("mistral", "sdpa"), ("gemma3", "sdpa"), ("gemma3", "eager"), ("gpt-neox", "sdpa")}


@pytest.mark.parametrize(
    ("family", "kernel"),
    [
        pytest.param(family, kernel, marks=() if (family, kernel) in QUICK else pytest.mark.slow)
        for family in FAMILIES
        for kernel in ("sdpa", "eager")
    ],
)
def test_truth_table(family, kernel):
    """One layer, one token changed at a time, alone and padded beside a longer row."""
    backbone = Backbone(tiny_model(family, attn_implementation=kernel))
    window = CONFIGS[family].sliding_window if family in ("mistral", "gemma3") else None  # gemma3's first layer slides
    for pattern in PATTERNS.values():
        for rows, at in (([LONG], 0), ([LONG, SHORT], 0), ([LONG, SHORT], 1)):
            row, tokens = rows[at], Tokens.pad(rows)
            with torch.inference_mode():
                before = backbone.hidden_states(tokens, pattern, num_layers=1)[at]
                for j in range(len(row.ids)):
                    ids = tokens.input_ids.clone()
                    ids[at, j] = 99
                    after = backbone.hidden_states(Tokens(ids, tokens.segment_ids), pattern, num_layers=1)[at]
                    moved = (after - before).abs().amax(-1)[: len(row.ids)] > 1e-6
                    wanted = expected(pattern, row, window)[:, j]
                    assert moved.tolist() == wanted.tolist(), (pattern, j, len(rows), at)


@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
@pytest.mark.parametrize("mode", ["causal", "bidirectional"])
def test_the_flag_and_the_mask_say_the_same(family, mode):
    class Masked(Attention):
        is_causal = None  # type: ignore[assignment]

    backbone, tokens = Backbone(tiny_model(family)), Tokens.pad([LONG, SHORT])
    with torch.inference_mode():
        flag = backbone.hidden_states(tokens, Attention(mode))  # type: ignore[arg-type]
        mask = backbone.hidden_states(tokens, Masked(mode))  # type: ignore[arg-type]
    real = tokens.attention_mask.bool()
    assert torch.allclose(flag[real], mask[real], atol=2e-6)


@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
@pytest.mark.parametrize("mode", list(PATTERNS)[:3])
def test_a_row_alone_is_the_row_in_a_padded_batch(family, mode, make_encoder):
    encoder = make_encoder(family, attention=mode)
    texts = ["a fox", "The quick brown fox jumps over the lazy dog near the river, again and again.", ""]
    together = encoder.encode(texts)
    alone = [encoder.encode(text) for text in texts]
    assert abs(together - alone).max() < 2e-6


def test_the_shared_configuration_is_not_touched():
    backbone = Backbone(tiny_model("llama"))
    for pattern in (PATTERNS["bidirectional"], PATTERNS["causal"]):
        backbone.hidden_states(Tokens.pad([LONG]), pattern)
        assert not hasattr(backbone.inner.config, "is_causal"), "a call must leave no trace for other threads"


def test_errors():
    with pytest.raises(ValueError, match="choose from causal, bidirectional, memory_causal"):
        Attention("sideways")  # type: ignore[arg-type]
    config = tiny_model("llama").config
    config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="takes no mask"):
        Attention("memory_causal").mask(Tokens.pad([LONG]), config, torch.float32)
