"""Losses and gradients of one chunk of rows by fused kernels, where these are found to agree with the eager chunk."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from embrew.losses.eager_chunk import chunk_kl, chunk_nll, project

logger = logging.getLogger(__name__)
AGREES = 1e-5  # largest relative difference of fused kernels from the eager chunk


def fused_chunk(
    fused: Any,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    logits: Tensor,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Return as `chunk_nll` or `chunk_kl`, from kernels that read each logit twice."""
    distils, rows = target.ndim == 2, len(hidden)
    block = logits[: rows * (1 + distils)]
    project(torch.cat([target, hidden]) if distils else hidden, weight, block)
    if not distils:
        return fused.nll_and_gradient(block, target, bias, softcap), block
    teacher, student = block.split(rows)
    return fused.kl_and_gradient(teacher, student, bias, softcap), student


@cache
def kernels(device: torch.device) -> Any | None:
    """Return the module of fused kernels for a GPU with Triton, if they give what the eager chunk gives there.

    Compared once per device and process, on a few random rows.
    """
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    try:
        from embrew.losses import fused_kernels

        gap = largest_gap(fused_kernels, device)
    except Exception as error:  # whatever a compiler of this machine may raise: the eager chunk needs none
        logger.warning("losses over the vocabulary run without fused kernels, which cannot be compiled: %s", error)
        return None
    if not gap <= AGREES:
        logger.warning("losses over the vocabulary run without fused kernels, whose results differ by %.1e", gap)
        return None
    return fused_kernels


def largest_gap(fused: Any, device: torch.device) -> float:
    """Return the largest relative difference of fused kernels from the eager chunk, in losses and gradients."""
    generator = torch.Generator().manual_seed(0)
    rows, width, vocabulary = 5, 16, 9001
    found = 0.0
    for softcap, biased in ((None, False), (5.0, True)):
        sizes = ((rows, width), (rows, width), (vocabulary, width), (vocabulary,))
        given = [torch.randn(size, generator=generator).to(device) for size in sizes]
        hidden, teacher, weight, bias = *given[:3], given[3] if biased else None
        labels = torch.arange(rows, device=device) * 2250
        for target in (teacher, labels):
            block = torch.empty(rows * target.ndim, vocabulary, device=device)
            if target.ndim == 2:
                wanted = chunk_kl(hidden, weight, bias, target, block, torch.empty_like(block[:rows]), softcap)
            else:
                wanted = chunk_nll(hidden, weight, bias, target, block, softcap)
            ours = fused_chunk(fused, hidden, weight, bias, target, torch.empty_like(block), softcap)
            for one, other in zip(ours, wanted, strict=True):
                found = max(found, float((one - other).abs().max() / other.abs().max()))
    return found
