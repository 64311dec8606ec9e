"""The weights under an adapter, the base's or an encoder's own, and their dtype."""

from __future__ import annotations

import copy
import itertools
from typing import Any, TypeVar

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from embrew.model.adapters import LowRank

T = TypeVar("T", bound=nn.Module)


def without_adapter(model: nn.Module) -> Any:
    """Return a shallow copy of a model without the adapters in it: the same modules, weights and names as before them.

    A model without adapters is returned unchanged.
    """
    if isinstance(model, AuxiliaryTrainingWrapper):
        return without_adapter(model.original_module)
    if isinstance(model, BaseTunerLayer):
        return without_adapter(model.get_base_layer())
    children = {name: child and without_adapter(child) for name, child in model._modules.items()}
    if all(children[name] is child for name, child in model._modules.items()):
        return model
    copied = copy.copy(model)
    copied._modules = children
    return copied


def on_same_tensors(model: T) -> T:
    """Return a copy of a model whose parameters and buffers are those of the model, not copies."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def tensors_under_adapter(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of a model without the adapters in it, under the names of the plain model."""
    return {name: tensor.detach() for name, tensor in without_adapter(model).state_dict().items()}


def describe_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor], *, exactly: bool) -> str | None:
    """Return a description of the tensors that differ; None if none does.

    Args:
        ours: tensors by name.
        theirs: tensors to compare with.
        exactly: whether to compare to the bit; otherwise up to a few roundings, by which merging again differs.
    """
    odd = sorted(ours.keys() ^ theirs.keys())
    if odd:
        return f"tensors that only one of them has: {', '.join(odd[:3])}"
    gaps: dict[str, float] = {}
    for name, tensor in ours.items():
        tensor, other = tensor.cpu(), theirs[name].cpu()
        if tensor.shape != other.shape:
            return f"{name} has shape {tuple(tensor.shape)} and {tuple(other.shape)}"
        if (tensor.dtype == other.dtype and torch.equal(tensor, other)) or not tensor.is_floating_point():
            continue
        gap, largest = (float(values.abs().max()) for values in (tensor.float() - other.float(), tensor.float()))
        epsilon = max(torch.finfo(part.dtype).eps for part in (tensor, other))
        if not gap <= (0.0 if exactly and tensor.dtype == other.dtype else 4 * epsilon * largest):
            gaps[name] = gap
    if not gaps:
        return None
    worst = max(gaps, key=lambda name: gaps[name])
    return f"{len(gaps)} of {len(ours)} tensors, most in {worst} (by up to {gaps[worst]:.2g})"


def train_in_float32(model: nn.Module) -> list[str]:
    """Make every trained weight of fewer than 32 bits float32, and return their names.

    Neighbouring bfloat16 numbers are 1/256 to 1/128 apart, relative to their size. A step of the optimiser is mostly
    smaller than half of that, and adding it to a bfloat16 weight then changes nothing. The arithmetic of a step may
    be in bfloat16 all the same (autocast); what is frozen keeps its dtype.
    """
    rounded = {name: p for name, p in model.named_parameters() if p.requires_grad and _is_short(p)}
    for parameter in rounded.values():
        parameter.data = parameter.data.float()
    return list(rounded)


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Give a model's weights a dtype, as if it had been opened in it.

    Buffers that are computed and not saved, such as the frequencies of rotary positions, keep theirs: rounded to
    bfloat16, they move far positions. (`nn.Module.to` rounds them too.) So do adapters merged into 4-bit layers.
    """
    for module in model.modules():
        if isinstance(module, LowRank):
            continue
        for parameter in module._parameters.values():
            if parameter is not None and parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for name, buffer in module._buffers.items():
            saved = name not in module._non_persistent_buffers_set
            if buffer is not None and saved and buffer.is_floating_point():
                module._buffers[name] = buffer.to(dtype)


def check_float32(model: nn.Module) -> None:
    """Raise where a trained weight has fewer than 32 bits.

    Raises:
        ValueError: names such weights.
    """
    short = [name for name, p in model.named_parameters() if p.requires_grad and _is_short(p)]
    if short:
        more = f", and {len(short) - 3} more" if len(short) > 3 else ""
        raise ValueError(
            f"{', '.join(short[:3])}{more}: trained weights of fewer than 32 bits lose most steps to rounding; call "
            "embrew.model.weights.train_in_float32(encoder) first (training.bf16: true computes in bfloat16)"
        )


def _is_short(parameter: nn.Parameter) -> bool:
    return parameter.dtype in (torch.bfloat16, torch.float16)
