"""RMS norms and gated feed-forward parts in training: fewer passes over memory, fewer tensors kept.

Outputs are the library's to the bit, gradients up to rounding.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from embrew.model.cpu.lora_linear import LoraLinear


def use_own_parts(model: nn.Module) -> None:
    """Give those norms and feed-forward parts of a model this arithmetic that are measured to have the same outputs."""
    for module in model.modules():
        for replacement in (_RMSNorm, _GatedMLP):
            if not isinstance(module, replacement) and replacement.equals(module):
                module.__class__ = _with_own(replacement, type(module))


def is_gated(module: nn.Module) -> bool:
    """Return whether a module is a feed-forward part of which training on a CPU keeps two wide states instead of four.

    Its weights are not read.
    """
    return _GatedMLP.equals(module)


def _with_own(replacement: type[nn.Module], kind: type[nn.Module]) -> type[nn.Module]:
    if (replacement, kind) not in _CLASSES:
        _CLASSES[replacement, kind] = type(kind.__name__, (replacement, kind), {})
    return _CLASSES[replacement, kind]


_CLASSES: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}


class _RMSNorm(nn.Module):
    """x · (mean(x²) + ε)^(−1/2) · w, of which x and one number per row are kept."""

    weight: Tensor
    variance_epsilon: float

    @staticmethod
    def equals(module: nn.Module) -> bool:
        """Return whether a module is such a norm."""
        weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
        if not (type(module).__name__.endswith("RMSNorm") and isinstance(epsilon, float) and weight is not None):
            return False
        if weight.ndim != 1 or weight.dtype != torch.float32 or weight.device.type != "cpu":
            return False
        some = torch.linspace(-2.0, 3.0, 2 * len(weight)).view(2, -1)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return torch.equal(module(some), _NormProducts.apply(some, weight, epsilon))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return normalised states; the library's way where no gradient is wanted, or in shorter types."""
        both = hidden_states.dtype, self.weight.dtype
        if torch.is_grad_enabled() and both == (torch.float32, torch.float32):
            output: Tensor = _NormProducts.apply(hidden_states, self.weight, self.variance_epsilon)
            return output
        library: Tensor = super().forward(hidden_states)
        return library


class _NormProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        inverse, output = x.new_empty(*x.shape[:-1], 1), torch.square(x)
        torch.mean(output, -1, keepdim=True, out=inverse)
        inverse.add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return torch.mul(x, inverse, out=output).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, inverse = ctx.saved_tensors
        for_x = for_weight = None
        if ctx.needs_input_grad[1]:
            for_weight = (grads[0] * x).mul_(inverse).flatten(0, -2).sum(0)
        if ctx.needs_input_grad[0]:
            for_x = grads[0] * weight
            along = torch.linalg.vecdot(for_x, x)[..., None] * inverse.pow(3) / x.shape[-1]
            for_x.mul_(inverse).addcmul_(x, along, value=-1)
        return for_x, for_weight, None


class _GatedMLP(nn.Module):
    """down(silu(gate(x)) ∘ up(x)), of which gate(x) and up(x) are kept where `down` is a LoRA on frozen weights."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    @staticmethod
    def equals(module: nn.Module) -> bool:
        """Return whether a module is such a feed-forward part."""
        if not isinstance(getattr(module, "down_proj", None), LoraLinear) or not hasattr(module, "act_fn"):
            return False
        parts: dict[str, Any] = {
            "gate_proj": lambda x: x + 1,
            "up_proj": lambda x: 2 * x - 1,
            "down_proj": lambda x: -x,
        }
        some = torch.linspace(-5.0, 5.0, 32).view(2, -1)
        try:
            output = type(module).forward(SimpleNamespace(**parts, act_fn=module.act_fn), some)
        except (AttributeError, TypeError):
            return False
        return torch.equal(output, -(nn.functional.silu(some + 1) * (2 * some - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the part, `(…, hidden)`."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        down = self.down_proj
        output: Tensor = down.gated(gate, up) if isinstance(down, LoraLinear) else down(nn.functional.silu(gate) * up)
        return output
