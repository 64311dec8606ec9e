"""A stand-in for the package `flash_attn`: its varlen function as a loop over texts that checks its arguments.

The signature, the shapes and the bottom-right alignment of `causal` are those of flash-attn 2.8.
"""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from embrew.modeling.model import varlen


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """Return `(total_q, heads, width)`: each text's queries read that text's keys and values."""
    assert q.ndim == k.ndim == v.ndim == 3 and k.shape == v.shape and q.shape[2] == k.shape[2]
    assert q.dtype == k.dtype == v.dtype and q.shape[1] % k.shape[1] == 0
    for ends, longest, states in ((cu_seqlens_q, max_seqlen_q, q), (cu_seqlens_k, max_seqlen_k, k)):
        assert ends.dtype == torch.int32 and ends.ndim == 1 and ends.is_contiguous() and ends.device == q.device
        assert int(ends[0]) == 0 and int(ends[-1]) == len(states)
        assert type(longest) is int and longest == int(ends.diff().max()) and int(ends.diff().min()) > 0
    assert len(cu_seqlens_q) == len(cu_seqlens_k)
    assert type(causal) is bool and type(dropout_p) is float and 0 <= dropout_p < 1 and type(softcap) is float
    assert softmax_scale is None or type(softmax_scale) is float
    assert deterministic, "the backward pass adds up in a fixed order"
    left, right = window_size
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    k, v = (states.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for states in (k, v))
    exact = torch.promote_types(q.dtype, torch.float32)
    outputs = []
    for text in range(len(cu_seqlens_q) - 1):
        (q0, q1), (k0, k1) = cu_seqlens_q[text : text + 2].tolist(), cu_seqlens_k[text : text + 2].tolist()
        scores = torch.einsum("qhd,khd->hqk", q[q0:q1].to(exact), k[k0:k1].to(exact)) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        at = torch.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0)  # the last query stands at the last key
        distance = at - torch.arange(k1 - k0)
        seen = torch.ones_like(distance, dtype=torch.bool)
        seen &= (distance >= 0) if causal else True
        seen &= (distance <= left) if left >= 0 else True
        seen &= (-distance <= right) if right >= 0 else True
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        weights = torch.nn.functional.dropout(weights, dropout_p)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v[k0:k1].to(exact)))
    return torch.cat(outputs).to(q.dtype)


def install(monkeypatch: pytest.MonkeyPatch, **others: Any) -> ModuleType:
    """Make the stand-in importable as `flash_attn`; `others` replace or add functions."""
    module = ModuleType("flash_attn")
    module.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    module.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    for name, value in others.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(varlen, "has_flash", lambda: True)
    return module
