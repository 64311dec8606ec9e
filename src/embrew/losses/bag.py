"""Bag-of-words loss: predict which tokens a text has, in any order, from a few states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from embrew.float32 import full_float32
from embrew.losses.vocabulary import head_logits

TEXTS_AT_A_TIME = 4  # texts whose logits are held; they are recomputed in the backward pass


def bag_of_words_nll(
    hidden: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    *,
    row_weights: Tensor | None = None,
) -> Tensor:
    """Σ_r −w_r mean_{t ∈ T_r} log softmax(max_j head(h_rj))_t, over the slots j of a text.

    The embedding-based objectives of "Making Large Language Models A Better Foundation For Dense Retrieval" (arXiv
    2312.15503), Eqs. 2–4, in the authors' form: the largest logit of the slots, mean over the set of target tokens.

    Args:
        hidden: `(texts, slots, hidden)` states.
        targets: `(texts, most)` int64, the distinct tokens of each target, padded with −1. A text without any does
            not contribute.
        weight: `(vocabulary, hidden)` of the head, differentiable as `hidden` is.
        bias: `(vocabulary,)` or None.
        scale: factor of the logits.
        softcap: c in logits = c tanh(logits / c), or None.
        row_weights: `(texts,)` w; by default the mean over texts that have targets.

    Returns:
        A scalar, float32.

    Raises:
        ValueError: a target is outside the vocabulary (on a CPU; a GPU raises its own error), or the numbers of texts
            differ.
    """
    if len(targets) != len(hidden):
        raise ValueError(f"targets of {len(targets)} texts for states of {len(hidden)}; give one row per text")
    if targets.device.type == "cpu" and targets.numel() and int(targets.max()) >= len(weight):
        raise ValueError(f"target {int(targets.max())}; the vocabulary has {len(weight)}")
    there = targets >= 0
    if row_weights is None:
        row_weights = there.any(1).float() / there.any(1).sum().clamp(min=1)
    total: Any = torch.zeros((), device=hidden.device)
    for start in range(0, len(hidden), TEXTS_AT_A_TIME):
        rows = slice(start, start + TEXTS_AT_A_TIME)
        losses = checkpoint(_losses, hidden[rows], targets[rows], weight, bias, scale, softcap, use_reentrant=False)
        total = total + (losses * row_weights[rows]).sum()
    return total


def _losses(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Return losses `(texts,)`, each the mean over the targets of a text."""
    with full_float32(hidden.device.type):
        logits = head_logits(hidden, weight, bias, scale, softcap).float()
        log_p = logits.amax(1).log_softmax(-1)
        there = (targets >= 0).float()
        log_probs = log_p.gather(1, targets.clamp(min=0)) * there
        return -log_probs.sum(1) / there.sum(1).clamp(min=1)
