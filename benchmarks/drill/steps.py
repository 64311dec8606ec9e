"""Parts of training steps on a GPU beside their public forms: LBR's bottleneck, ESE's targets."""

from __future__ import annotations

from functools import partial
from typing import Any

import gpu
import harness
import torch
import walls
from espresso import by, gap, settled
from torch import Tensor

from drill import model, sizes
from drill.measure import pairs
from drill.record import Result
from embrew.losses import compression_target
from embrew.modeling.model.attention import TWO_CALLS
from embrew.objectives import Bottleneck

LOSS = 0.02  # largest relative difference of two losses in bfloat16
TARGET = 1e-3  # relative, of ESE's targets in float32 against float64


def bottleneck() -> Result:
    """A step on one row, all weights trained: two causal attention calls, against one with a dense mask."""
    now = sizes.now()
    built = model.encoder(
        "0.6b",
        template="{text}{memory}",
        memory_tokens=1,
        attention="causal",
        pooling=walls.Pooling("last", "memory"),
        max_length=4096,
    ).train()
    built.backbone.train_all()
    objective: Any = Bottleneck(end=False)
    objective.setup(built)
    batch = walls.batch_of(built, now.row)
    ours, dense = (walls.step_of(built, objective, batch, kernel) for kernel in (TWO_CALLS, "sdpa"))
    losses = ours(), dense()
    same = harness.require_equal("losses", [losses], LOSS)
    memory = {f"peak_gb_{name}": gpu.peak(step) for name, step in (("ours", ours), ("dense", dense))}
    found = pairs(ours, dense, now.rounds)
    return {"figures": {**found, **memory, "relative difference of losses": same, "tokens": now.row}}


def espresso() -> Result:
    """Targets of all layers at once, against a decomposition per layer as the public code has it."""
    now = sizes.now()
    x = decaying(now.layers, now.targets, now.width).to(gpu.DEVICE)
    k = now.compressed
    wanted = by(partial(full, k=k), x.double())
    ours = compression_target(x, k)
    exact = gap(settled(ours, wanted), wanted)
    found = pairs(partial(compression_target, x, k), partial(by, partial(lowrank, k=k), x), now.rounds)
    figures = {**found, "target_ms": found["ours_ms"], "largest_gap": exact, "layers": now.layers}
    return {"figures": figures, "checks": {"targets agree with float64": exact <= TARGET}}


def lowrank(matrix: Tensor, *, k: int) -> Tensor:
    """Return U·S of a matrix as the public code computes them."""
    u, s, _ = torch.svd_lowrank(matrix, q=k)
    return u * s


def full(matrix: Tensor, *, k: int) -> Tensor:
    """Return the first columns of U·S of the library's decomposition."""
    u, s, _ = torch.linalg.svd(matrix)
    return u[:, :k] * s[:k]


def decaying(layers: int, texts: int, width: int) -> Tensor:
    """Return vectors with a spectrum that decays as that of text embeddings, `(layers, texts, width)`."""
    generator = torch.Generator().manual_seed(0)
    scale = 0.3 * torch.arange(1, width + 1).pow(-0.5) * width**0.5 / 4
    mixing = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
    return torch.randn(layers, texts, width, generator=generator) * scale @ mixing
