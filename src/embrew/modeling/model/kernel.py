"""The attention kernels that embrew registers with transformers: sdpa, which can also be called in other ways.

Without further arguments each is the library's sdpa, so that a model keeps one kernel for packed and padded rows.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.masking_utils import sdpa_mask

from embrew.modeling.model.attention import OWN
from embrew.modeling.model.bottleneck import Walls, two_calls
from embrew.modeling.model.flash import Calls
from embrew.modeling.model.packed import alike
from embrew.modeling.model.sdpa import sdpa


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    walls: Walls | None = None,
    calls: Calls | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """Return attention `(batch, tokens, heads, width)`, and the kernel's second output.

    Args:
        module: the attention layer, for the library's own functions.
        query: `(batch, heads, tokens, width)`.
        key: `(batch, key heads, tokens, width)`.
        value: likewise.
        attention_mask: a block mask: FlexAttention; not used with walls or calls.
        dropout: on attention weights.
        scaling: of the products.
        walls: a bottleneck over padded rows, by two calls of sdpa.
        calls: packed rows, by flash-attention.
        **kwargs: what else the library passes.

    Raises:
        ValueError: a layer asks for what flash-attention lacks.
    """
    if calls is not None:
        lacking = [name for name in ("s_aux", "position_bias") if kwargs.get(name) is not None]
        if lacking:
            raise ValueError(f"{type(module).__name__} has {', '.join(lacking)}, which flash-attention does not take")
        windowed, softcap = kwargs.get("sliding_window") is not None, kwargs.get("softcap")
        found = calls.attend(query, key, value, dropout=dropout, scaling=scaling, windowed=windowed, softcap=softcap)
        return found, None
    if walls is not None:
        return two_calls(query, key, value, walls, dropout=dropout, scaling=scaling), None
    if isinstance(attention_mask, BlockMask):
        query, key, value = alike(query, key, value)
        return flex_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    return sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


def use(inner: Any, name: str) -> bool:
    """Switch a model with the library's sdpa to one of embrew's kernels; return True if one of these is active."""
    if inner.config._attn_implementation == "sdpa":
        inner.config._attn_implementation = name
    return inner.config._attn_implementation in OWN


for _name in OWN:
    AttentionInterface.register(_name, attend)
    AttentionMaskInterface.register(_name, sdpa_mask)
