"""Training steps on packed rows: the loss and gradients of padded rows, without any padding in the layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from embrew import build
from embrew.modeling.embedding import batching
from embrew.modeling.embedding.batching import PACKED_TOKENS, embed_by_length, groups_by_length, plan
from embrew.modeling.encoder import Encoder
from embrew.modeling.model import varlen
from embrew.modeling.model.cost import Cost
from embrew.modeling.model.layers import layers_of
from embrew.modeling.text.tokens import Row, Segment, Tokens
from embrew.training.gradcache import Chunks
from embrew.training.step import TrainStep
from tests import flash_stand_in
from tests.objectives.cases import prepared
from tests.training.test_gradcache import gradients, in_groups, same

OBJECTIVES: dict[str, dict[str, Any]] = {
    "contrastive": {"type": "contrastive"},
    "compression": {"type": "compression", "divergence": "kl", "min_context_tokens": 4, "min_target_tokens": 4},
    "alignment": {"type": "alignment"},
    "espresso": {"type": "espresso", "base": {"type": "contrastive"}, "compression_size": 8},
    "bottleneck": {"type": "bottleneck"},
}


@pytest.fixture(autouse=True)
def _flash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "_VERIFIED", {})
    flash_stand_in.install(monkeypatch)


def step_of(make_encoder: Callable[..., Encoder], settings: dict[str, Any], kernel: str, **how: Any) -> Any:
    attention = "causal" if settings["type"] == "bottleneck" else "bidirectional"
    encoder = make_encoder(lora={"lora_dropout": how.pop("lora_dropout", 0.0)}, attention=attention)
    objective = build.objective(settings)
    objective.setup(encoder)
    batch = objective.collate(prepared(objective, encoder), encoder)
    encoder.backbone.inner.config._attn_implementation = kernel
    return TrainStep(encoder.train(), objective, **how), batch


def positions(step: TrainStep, run: Callable[[], Any]) -> tuple[Any, set[int], int]:
    """Return what a call gives, and the rows and all positions that the first layer computed."""
    shapes: list[torch.Size] = []
    layer = layers_of(step.encoder.backbone.inner)[0]
    hook = layer.register_forward_pre_hook(lambda _, args, kwargs: shapes.append(args[0].shape[:2]), with_kwargs=True)
    try:
        return run(), {shape[0] for shape in shapes}, sum(shape.numel() for shape in shapes)
    finally:
        hook.remove()


QUICK = ("contrastive", "compression")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in OBJECTIVES])
def test_loss_and_gradients(name: str, make_encoder: Callable[..., Encoder]) -> None:
    step, batch = step_of(make_encoder, OBJECTIVES[name], "sdpa")
    (wanted, grads), _, padded = positions(step, lambda: gradients(step, batch))
    step, batch = step_of(make_encoder, OBJECTIVES[name], "varlen_fa")
    gradients(step, batch)  # kernels are verified
    (loss, found), rows, computed = positions(step, lambda: gradients(step, batch))
    assert rows == {1} and computed < padded
    assert abs(loss - wanted) <= 1e-5 * abs(wanted)
    same(found, grads, close=2e-5)
    if name == "contrastive":
        texts = [tokens for tokens in batch.values() if isinstance(tokens, Tokens)]
        assert computed == sum(int(tokens.attention_mask.sum()) for tokens in texts), "no padding"


@pytest.mark.parametrize("lora_dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.4])
def test_gradient_caching(lora_dropout: float, make_encoder: Callable[..., Encoder]) -> None:
    """Both forward passes are packed, so that dropout is drawn alike; the reference embeds the same chunks, once."""
    step, batch = step_of(
        make_encoder, OBJECTIVES["contrastive"], "varlen_fa", lora_dropout=lora_dropout, chunks=Chunks(tokens=30)
    )
    torch.manual_seed(3)
    (loss, found), rows, _ = positions(step, lambda: gradients(step, batch))
    assert 1 in rows
    torch.manual_seed(3)

    def split(tokens: Tokens) -> list[list[int]]:
        groups = groups_by_length(tokens, Cost(packed=True), batch_tokens=30)
        assert len(groups) > 1
        return groups

    plain, wanted = in_groups(step, batch, split)
    assert abs(loss - plain) <= 1e-6
    same(found, wanted)


def test_a_kernel_without_a_backward_pass_is_not_used_in_a_gradient_cache(
    make_encoder: Callable[..., Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even in its first pass, which has no gradients: dropout would be drawn differently in the second."""

    def forward_only(q: torch.Tensor, *args: Any, **how: Any) -> torch.Tensor:
        if q.requires_grad:
            raise NotImplementedError("no backward pass")
        return flash_stand_in.flash_attn_varlen_func(q, *args, **how)

    flash_stand_in.install(monkeypatch, flash_attn_varlen_func=forward_only)
    step, batch = step_of(make_encoder, OBJECTIVES["contrastive"], "varlen_fa", chunks=Chunks(rows=3))
    gradients(step, batch)
    (_, _), rows, _ = positions(step, lambda: gradients(step, batch))
    assert 1 not in rows
    with torch.no_grad():
        assert step.encoder.eval().packs, "to encode, it is used"


def test_packed_batches_hold_real_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 4 × 10 padded positions for 10 + 6 + 6 + 5 tokens; more than half padding closes a batch."""
    monkeypatch.setattr(batching, "ENOUGH_PACKED", 1)
    lengths = [10, 6, 6, 5, 1, 1]
    assert plan(lengths, batch_size=9, batch_tokens=27, cost=Cost(packed=True)) == [[0, 1, 2, 3], [4, 5]]
    assert plan(lengths, batch_size=9, batch_tokens=26, cost=Cost(packed=True)) == [[0, 1, 2], [3, 4], [5]]
    assert plan([10, 4, 1, 1], batch_size=9, cost=Cost(packed=True)) == [[0, 1, 2], [3]]
    rows = [Row.of(range(3, 3 + n), Segment.TEXT) for n in (100, 90, 80, 9)] * 64
    tokens = Tokens.pad(rows)
    for group in groups_by_length(tokens, Cost(packed=True)):
        assert sum(len(rows[i].ids) for i in group) <= PACKED_TOKENS
    assert [len(group) for group in groups_by_length(tokens, Cost(packed=True))] == [64 + 64 + 52, 12 + 15, 49]
    seen = []
    embed_by_length(lambda part: seen.append(len(part)) or torch.zeros(len(part), 1), tokens, Cost(packed=True))
    assert sum(seen) == len(rows)
