"""The contrastive loss of conditional distribution alignment."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


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
