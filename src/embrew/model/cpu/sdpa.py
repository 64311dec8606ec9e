"""Scaled dot-product attention on a CPU: in float32, and with dropout that costs little."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from embrew.model.cpu.dropout import drop_out


def sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return attention `(batch, tokens, heads, width)`; on a CPU in float32, and with dropout that costs little.

    Args:
        module: the attention layer.
        query: `(batch, heads, tokens, width)`.
        key: `(batch, key heads, tokens, width)`.
        value: likewise.
        attention_mask: bool or additive `(batch, 1, tokens, keys)`, or None: the layer's own pattern, causal or full.
        dropout: dropout on attention weights.
        scaling: factor of the products; 1 / sqrt(width) by default.
        **kwargs: further arguments that the library passes.
    """
    rounds = torch.is_autocast_enabled("cpu") or value.dtype.itemsize < 4
    if query.device.type != "cpu" or not (dropout or rounds):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    dtype = value.dtype
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.to(torch.promote_types(attention_mask.dtype, torch.float32))
    with float32_on_cpu(query, key, value) as (query, key, value):
        if dropout and kwargs.get("position_bias") is None and kwargs.get("cache") is None:
            is_causal = kwargs.get("is_causal")
            is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            is_causal = attention_mask is None and query.shape[2] > 1 and bool(is_causal)  # the library's choice
            output = _with_dropout(query, key, value, attention_mask, dropout, scaling, is_causal=is_causal)
        else:
            output, _ = sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
            )
    return output.to(dtype), None


@contextmanager
def float32_on_cpu(*states: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Give shorter states in float32, and switch autocast off, if they are on a CPU."""
    if states[0].device.type != "cpu":
        yield states
        return
    with torch.autocast("cpu", enabled=False):
        yield tuple(state if state.dtype.itemsize >= 4 else state.float() for state in states)


def _with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    *,
    is_causal: bool,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scaling is None else scaling)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1)
    if mask is not None and mask.dtype == torch.bool:
        weights = torch.where(mask.any(-1, keepdim=True), weights, 0.0)  # a position that reads nothing
    return (drop_out(weights, dropout) @ value).transpose(1, 2).contiguous()
