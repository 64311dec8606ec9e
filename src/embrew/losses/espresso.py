"""ESE: weights of layers, and the loss between leading dimensions and their compressed form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from embrew.float32 import full_float32


def layer_weights(layers: int) -> Tensor:
    """w_i = 1 / (1 + ln i) for layers 1 to n − 1, and 1 for the last: `(layers,)` float32.

    *ESE: Espresso Sentence Embeddings* (arXiv 2402.14776), Eq. 2.
    """
    weights = 1.0 / (1.0 + torch.arange(1, layers + 1, dtype=torch.float32).log())
    weights[-1] = 1.0
    return weights


def compression_loss(leading: Tensor, target: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Mean (S − T)² + t · KL(softmax(T/t) ‖ softmax(S/t)), one value per layer: `(...)` float32.

    Espresso Sentence Embeddings, Eq. 6, as the authors' code has it: the KL is a mean over texts, times t.

    Args:
        leading: S `(..., texts, k)`, the first k dimensions.
        target: T `(..., texts, k)`; no gradient.
        temperature: t.

    Raises:
        ValueError: the shapes differ, or t is not positive.
    """
    if leading.shape != target.shape:
        raise ValueError(
            f"leading dimensions {tuple(leading.shape)} and target {tuple(target.shape)} must have the same shape"
        )
    if temperature <= 0:
        raise ValueError(f"temperature={temperature}; it must be positive")
    with full_float32(leading.device.type):
        if leading.dtype != torch.float64:
            leading, target = leading.float(), target.float()
        target = target.detach()
        if not leading.shape[-2]:  # another process has all texts
            return leading.sum((-2, -1))
        squares = (leading - target).square().mean((-2, -1))
        wanted = functional.log_softmax(target / temperature, dim=-1)
        given = functional.log_softmax(leading / temperature, dim=-1)
        kl = functional.kl_div(given, wanted, reduction="none", log_target=True).sum(-1).mean(-1)
        return squares + temperature * kl
