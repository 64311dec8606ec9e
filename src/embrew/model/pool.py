"""From token states to one vector per text, as `Pooling` says."""

from __future__ import annotations

import torch
from torch import Tensor

from embrew.float32 import full_float32
from embrew.model.latent import LatentAttention
from embrew.settings.pooling import MODES, Pooling
from embrew.text.indexing import at, upload
from embrew.text.tokens import Segment, Tokens

SEGMENTS = {"text": Segment.TEXT, "echo": Segment.ECHO, "memory": Segment.MEMORY}


def new_head(pooling: Pooling, width: int) -> LatentAttention | None:
    """Return a new trained head for states of a width; None where pooling has none."""
    if pooling.latents is None:
        return None
    return LatentAttention(width, latents=pooling.latents, heads=pooling.heads or 8, head_width=pooling.head_width)


def positions(pooling: Pooling, tokens: Tokens) -> Tensor:
    """Return `(batch, tokens)` bool: the positions that are pooled (for `last`, those the last is taken from)."""
    if pooling.over == "all":
        return tokens.attention_mask.bool()
    chosen = tokens.where(SEGMENTS[pooling.over])
    if pooling.slots is not None:
        slot = chosen.long().cumsum(-1) - 1
        chosen = chosen & (slot[..., None] == torch.tensor(pooling.slots, device=slot.device)).any(-1)
    return chosen


def weights(pooling: Pooling, tokens: Tokens) -> Tensor:
    """Return `(batch, tokens)` float32 weights that sum to 1 per row (0 where nothing is pooled)."""
    chosen = positions(pooling, tokens)
    found: Tensor = MODES[pooling.mode].weights(chosen, chosen.long().cumsum(-1)).float()
    return found / found.sum(-1, keepdim=True).clamp(min=1.0)


def pool(pooling: Pooling, states: Tensor, tokens: Tokens, before: Tensor | None = None) -> Tensor:
    """Pool `states` `(batch, tokens, hidden)` to float32 `(batch, dimensions)`.

    `before` `(1, count, hidden)` are states of the first positions, which all rows share; `states` follow them.
    """
    with full_float32(states.device.type):
        count = 0 if before is None else before.shape[1]
        if pooling.mode == "concat":
            return at(states, positions(pooling, tokens.host)[:, count:]).float().reshape(len(states), -1)
        each = upload(weights(pooling, tokens.host), states.device)
        if before is None:
            return torch.einsum("bt,bth->bh", each, states.float())
        rest = torch.einsum("bt,bth->bh", each[:, count:], states.float())
        return rest if pooling.mode == "last" else rest + each[:, :count] @ before[0].float()
