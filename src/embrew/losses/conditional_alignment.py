"""Conditional distribution alignment: its contrastive loss, and divergences of distributions over the vocabulary."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from embrew.float32 import full_float32
from embrew.losses.vocabulary import head_logits


def conditional_alignment_loss(
    near: Tensor, far: Tensor, owner: Tensor, *, temperature: float = 0.1, logarithm: bool = False
) -> Tensor:
    """mean_i −log [ e^{S1_i/τ} / (e^{S1_i/τ} + Σ_{j of i} e^{S2_j/τ}) ], S1 = −σ(near), S2 = −σ(far).

    *Following the Autoregressive Nature of LLM Embeddings via Compression and Alignment*, Eq. 2.

    Args:
        near: `(pairs,)` to be minimised: β |a − b|, or a divergence.
        far: `(negatives,)` to be maximised: β times the margin over a negative, or a divergence.
        owner: `(negatives,)` int64: the pair that a negative belongs to.
        temperature: τ.
        logarithm: −log σ in place of −σ.

    Returns:
        A scalar, float32.

    Raises:
        ValueError: the numbers of owners and negatives differ.
    """
    if len(owner) != len(far):
        raise ValueError(f"{len(owner)} owners of {len(far)} negatives; give one each")
    near, far = near.float(), far.float()
    s1, s2 = (-functional.logsigmoid(x) if logarithm else -torch.sigmoid(x) for x in (near, far))
    # Σ_j e^{(S2_j − S1)/τ} of each pair, without overflow in float32
    differences = (s2 - s1[owner]) / temperature
    largest = torch.zeros_like(near).scatter_reduce(0, owner, differences.detach(), "amax", include_self=True)
    total = (-largest).exp().index_add(0, owner, (differences - largest[owner]).exp())
    losses = largest + total.log()
    return losses.mean() if len(losses) else losses.sum()


def token_divergences(
    one: Tensor,
    other: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    *,
    kind: Literal["kl", "js"] = "kl",
    chunk_size: int = 64,
) -> Tensor:
    """KL(P_r ‖ Q_r), or Jensen–Shannon, of next-token distributions under one head: `(rows,)` float32.

    Differentiable in both sides, unlike `token_kl`, and in the head; the backward pass computes the logits again.

    Args:
        one: `(rows, hidden)` states of P.
        other: `(rows, hidden)` states of Q.
        weight: `(vocabulary, hidden)` of the head.
        bias: `(vocabulary,)` or None.
        scale: as in `token_kl`, likewise `softcap`.
        softcap: or None.
        kind: KL or Jensen–Shannon.
        chunk_size: rows per projection.

    Raises:
        ValueError: the shapes differ.
    """
    if one.shape != other.shape:
        raise ValueError(f"states {tuple(one.shape)} and {tuple(other.shape)} must have the same rows")
    parts = [
        checkpoint(_divergences, p, q, weight, bias, scale, softcap, kind, use_reentrant=False)
        for p, q in zip(one.split(chunk_size), other.split(chunk_size), strict=True)
    ]
    return torch.cat(parts) if parts else one.new_zeros(0, dtype=torch.float32)


def _divergences(
    one: Tensor,
    other: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float,
    softcap: float | None,
    kind: str,
) -> Tensor:
    with full_float32(one.device.type):
        p, q = (head_logits(h, weight, bias, scale, softcap).log_softmax(-1) for h in (one, other))
        if kind == "kl":
            return (p.exp() * (p - q)).sum(-1)
        middle = torch.logaddexp(p, q) - math.log(2.0)
        return ((p.exp() * (p - middle)).sum(-1) + (q.exp() * (q - middle)).sum(-1)) / 2
