"""Dropout: its probabilities in a model, and a faster draw of what is dropped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedConfig

from embrew.model.attention import at_rest

ATTENTION = ("attention_dropout", "attn_dropout")  # of an attention layer; OPT's is named `dropout`


def set_attention_dropout(inner: Any, probability: float) -> None:
    """Set the dropout on attention weights in every layer (SimCSE's noise), and measure that it has an effect.

    Raises:
        ValueError: the family has no such dropout, or does not apply it with this attention kernel.
    """
    held = [(module, name) for module in inner.modules() for name in _names(module)]
    if probability and not held:
        raise ValueError(f"{type(inner).__name__} has no attention dropout; use lora_dropout instead")
    if probability and not _has_effect(inner, held):
        _assign(held, 0.0)
        raise ValueError(
            f"{type(inner).__name__} does not apply its attention dropout with attn_implementation="
            f"{inner.config._attn_implementation}; use lora_dropout instead"
        )
    _assign(held, probability)


def _assign(held: list[tuple[nn.Module, str]], probability: float) -> None:
    for module, name in held:
        dropout = getattr(module, name)
        if isinstance(dropout, nn.Dropout):
            dropout.p = float(probability)
        else:
            setattr(module, name, float(probability))


def _names(module: nn.Module) -> list[str]:
    names = list(ATTENTION)
    if "Attention" in type(module).__name__ and isinstance(getattr(module, "dropout", None), float):
        names.append("dropout")
    return [name for name in names if isinstance(getattr(module, name, None), nn.Dropout | float | int)]


def _has_effect(inner: Any, held: list[tuple[nn.Module, str]]) -> bool:
    """Return whether two forward passes differ with this dropout alone, at one half."""
    weight = inner.get_input_embeddings().weight
    ids = torch.linspace(0.1 * len(weight), 0.8 * len(weight), 16).long()[None].to(weight.device)
    cuda = [weight.device] if weight.device.type == "cuda" else []
    layers = [part for module, name in held for part in (module, getattr(module, name)) if isinstance(part, nn.Module)]
    _assign(held, 0.5)
    with at_rest(inner), torch.no_grad(), torch.random.fork_rng(devices=cuda):
        try:
            for layer in layers:
                layer.training = True
            read = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
            one, other = (inner(**read)[0] for _ in range(2))
        finally:
            for layer in layers:
                layer.training = False
    return not torch.equal(one, other)


def probabilities(model: nn.Module) -> Iterator[tuple[Any, str]]:
    """Return modules and configurations with the names of their probabilities of dropout and of skipping a layer."""
    configs = {
        id(m.config): m.config for m in model.modules() if isinstance(getattr(m, "config", None), PreTrainedConfig)
    }
    for holder in (*model.modules(), *configs.values()):
        own = ["p"] if isinstance(holder, nn.Dropout) else []
        for name in own + [name for name, value in vars(holder).items() if "drop" in name and type(value) is float]:
            yield holder, name


@dataclass(frozen=True)
class Mask:
    """Elements of a tensor that dropout sets to zero; what is left is not scaled.

    Attributes:
        positions: on a CPU, flat indices of the elements, int64, ascending; elsewhere, bool of the tensor's shape,
            false where an element is set to zero.
    """

    positions: Tensor

    @classmethod
    def draw(cls, like: Tensor, probability: float) -> Mask:
        """Draw a mask from PyTorch's random state of the tensor's device.

        Args:
            like: a tensor of the shape `(…, width)`.
            probability: in (0, 1).
        """
        if like.device.type == "cpu":
            return cls(dropped_positions(like.numel(), probability))
        kept = torch.empty_like(like, dtype=torch.bool, memory_format=torch.contiguous_format)
        kept.bernoulli_(1 - probability)
        return cls(kept.view(-1, like.shape[-1]))

    def apply(self, values: Tensor) -> Tensor:
        """Return `(rows, width)` values with the mask's elements set to zero."""
        if self.positions.dtype == torch.int64:
            return self.apply_(values.clone(memory_format=torch.contiguous_format))
        return values * self.positions

    def apply_(self, values: Tensor) -> Tensor:
        """Do the same in place, for contiguous values."""
        if self.positions.dtype == torch.int64:
            values.view(-1).index_fill_(0, self.positions, 0.0)
            return values
        return values.mul_(self.positions)


def dropped_positions(count: int, probability: float) -> Tensor:
    """Return the positions, ascending, of those of `count` elements that dropout sets to zero.

    Each element is drawn independently. One number of PyTorch's CPU generator seeds the draw, so that a restored random
    state gives the same positions.
    """
    generator = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    scale = -1.0 / math.log1p(-probability)
    expected = count * probability
    size = int(expected + 6 * math.sqrt(expected)) + 16
    parts: list[np.ndarray] = []
    last = -1
    while last < count:
        gaps = generator.standard_exponential(size)
        gaps *= scale
        at = np.cumsum(gaps.astype(np.int64) + 1) + last
        parts.append(at)
        last = int(at[-1])
    positions = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return torch.from_numpy(positions[: np.searchsorted(positions, count)])


def drop_out(values: Tensor, probability: float) -> Tensor:
    """Return values on a CPU with dropout: zero with a probability, else divided by the probability to stay."""
    dropped: Tensor = _DropOut.apply(values, probability)
    return dropped


class _DropOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, probability: float) -> Tensor:
        positions = dropped_positions(values.numel(), probability)
        ctx.save_for_backward(positions)
        ctx.kept = 1 - probability
        return (values / ctx.kept).view(-1).index_fill_(0, positions, 0.0).view(values.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (positions,) = ctx.saved_tensors
        grad = grads[0] / ctx.kept
        return grad.contiguous().view(-1).index_fill_(0, positions, 0.0).view(grad.shape), None
