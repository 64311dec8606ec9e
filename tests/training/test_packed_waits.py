"""How often the host waits for the device where rows are packed, counted on a pretended device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from embrew import build
from embrew.modeling.encoder import Encoder
from embrew.modeling.model import kernel, varlen
from embrew.training.step import TrainStep
from tests import flash_stand_in
from tests.objectives.cases import LORA, prepared
from tests.pretend_device import counted, move


@pytest.mark.parametrize("name", ["varlen_fa", pytest.param("varlen_flex", marks=pytest.mark.slow)])
def test_a_packed_step_waits_at_most_once(
    name: str, make_encoder: Callable[..., Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that read nothing stand for the real ones; lengths, indices and blocks come from the CPU."""
    calls: list[Any] = []

    def silent(q: Tensor, k: Tensor, v: Tensor, *ends: Any, **how: Any) -> Tensor:
        calls.append(ends)
        return q + k.mean() + v.mean()

    def blocks(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, **how: Any) -> tuple[Tensor, None]:
        calls.append(mask)
        return (q + k.mean() + v.mean()).transpose(1, 2), None

    flash_stand_in.install(monkeypatch, flash_attn_varlen_func=silent)
    monkeypatch.setattr(kernel, "flex_attention_forward", blocks)
    monkeypatch.setattr(varlen, "keeps_apart", lambda *args, **how: True)
    monkeypatch.setattr(varlen, "_VERIFIED", {})
    encoder = make_encoder(lora=LORA)
    objective = build.objective({"type": "contrastive"})
    batch = objective.collate(prepared(objective, encoder), encoder)
    encoder.backbone.inner.config._attn_implementation = name
    step = TrainStep(encoder, objective).train()
    move(step)
    with counted():
        step(**batch)
    calls.clear()
    with counted() as waits:
        step(**batch)["loss"].backward()
    assert calls and waits.operations > 100
    assert waits.counts.total() <= 1, waits.counts
    assert all(isinstance(call, BlockMask if name == "varlen_flex" else tuple) for call in calls)
