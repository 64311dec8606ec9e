"""The attention kernel that embrew registers with transformers: its sdpa, and a bottleneck in two causal calls."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from embrew.model.attention import TWO_CALLS, Attention, first_prompt, give_same_states, key_of, library_states
from embrew.model.cpu.attention import Packed, attend_each_row, float32_on_cpu, sdpa
from embrew.model.cpu.layer_parts import use_own_parts
from embrew.text.tokens import Segment, Tokens, upload


@dataclass(frozen=True)
class Bottleneck:
    """Positions that the two causal calls of a bottleneck read, and the index of each position's output.

    Attributes:
        first: `(batch, w1)` positions of text and memory, in order; filled up with 0 on the right.
        second: `(batch, w2)` positions of memory and target (and BOS, where it is visible), likewise.
        output: `(batch, tokens)` indices into the concatenated outputs of both calls.
    """

    first: Tensor
    second: Tensor
    output: Tensor

    @classmethod
    def from_tokens(cls, tokens: Tokens, attention: Attention) -> Bottleneck:
        """Return the bottleneck of a batch whose rows are text, memory, target."""
        segments = tokens.segment_ids
        is_target = segments == Segment.TARGET
        in_first = ~is_target & (segments != Segment.PAD)
        in_second = is_target | (segments == Segment.MEMORY)
        if attention.bottleneck == "visible":
            in_second = in_second | first_prompt(tokens)
        first, second = _positions(in_first), _positions(in_second)
        index_in_second = first.shape[1] + in_second.long().cumsum(1) - 1
        output = torch.where(is_target, index_in_second, in_first.long().cumsum(1) - 1)
        return cls(first, second, output.clamp(min=0))

    def to(self, device: torch.device | str) -> Bottleneck:
        """Return the same on another device."""
        return Bottleneck(*(upload(indices, device) for indices in (self.first, self.second, self.output)))


def _positions(chosen: Tensor) -> Tensor:
    """Return `(batch, maximum)`: the chosen positions of each row, in order, then zeros."""
    count = chosen.sum(1)
    order = torch.argsort((~chosen).long(), dim=1, stable=True)[:, : int(count.max())]
    return torch.where(torch.arange(order.shape[1], device=order.device) < count[:, None], order, 0)


def two_calls(
    query: Tensor, key: Tensor, value: Tensor, bottleneck: Bottleneck, *, dropout: float, scaling: float | None
) -> Tensor:
    """Return attention `(batch, tokens, heads, width)` of a batch with a bottleneck; right padding is ignored.

    Args:
        query: `(batch, heads, tokens, width)`.
        key: `(batch, key heads, tokens, width)`.
        value: likewise.
        bottleneck: positions of the two calls.
        dropout: dropout on attention weights.
        scaling: factor of the products.
    """
    parts, dtype = [], value.dtype
    for positions in (bottleneck.first, bottleneck.second):
        q, k, v = (_gather(states, positions) for states in (query, key, value))
        with float32_on_cpu(q, k, v) as (q, k, v):
            parts.append(
                nn.functional.scaled_dot_product_attention(
                    q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
                )
            )
    return _gather(torch.cat(parts, dim=2), bottleneck.output).transpose(1, 2).contiguous().to(dtype)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    bottleneck: Bottleneck | None = None,
    packed: Packed | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return attention as `sdpa`; with a bottleneck, which replaces the mask, as `two_calls`; packed rows apart."""
    if bottleneck is not None:
        return two_calls(query, key, value, bottleneck, dropout=dropout, scaling=scaling), None
    if packed is not None:
        outputs = attend_each_row(module, query, key, value, packed, dropout=dropout, scaling=scaling, **kwargs)
        return outputs, None
    return sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


AttentionInterface.register(TWO_CALLS, attend)
AttentionMaskInterface.register(TWO_CALLS, sdpa_mask)


_SAME_AS_SDPA: dict[Hashable, bool] = {}


def use_two_calls(inner: PreTrainedModel) -> bool:
    """Switch a model with the library's sdpa to the kernel of two calls; return True if it is active.

    Not where its states would change, measured once per configuration in a process: Falcon asks its configuration for
    `sdpa`, and does without a mask in any other kernel.
    """
    if inner.config._attn_implementation == "sdpa":
        key = key_of(inner)
        if key not in _SAME_AS_SDPA:
            _SAME_AS_SDPA[key] = give_same_states(
                inner, partial(_under, inner, "sdpa"), partial(_under, inner, TWO_CALLS)
            )
        inner.config._attn_implementation = TWO_CALLS if _SAME_AS_SDPA[key] else "sdpa"
    return bool(inner.config._attn_implementation == TWO_CALLS)


def _under(inner: PreTrainedModel, kernel: str, embedded: Tensor, tokens: Tokens) -> Tensor:
    inner.config._attn_implementation = kernel
    return library_states(inner, embedded, tokens)


def use_own_sdpa(inner: PreTrainedModel) -> None:
    """Replace the library's sdpa, norms and feed-forward parts by embrew's, which are faster in training on a CPU."""
    if inner.device.type == "cpu":
        use_two_calls(inner)
        use_own_parts(inner)


def _gather(states: Tensor, positions: Tensor) -> Tensor:
    """Return some positions of `(batch, heads, tokens, width)`."""
    index = positions[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(2, index)


def two_calls_apply(inner: PreTrainedModel, tokens: Tokens) -> bool:
    """Return whether two calls equal the pattern: no branches, and no window shorter than a row."""
    if inner.config._attn_implementation != TWO_CALLS or tokens.position_ids is not None:
        return False
    window = getattr(inner.config, "sliding_window", None)
    return window is None or tokens.input_ids.shape[1] <= window
