"""The weights under an adapter: the base's, or an encoder's own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn


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


def tensors_under_adapter(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of a model without the adapters in it, under the names of the plain model."""
    return {name: tensor.detach() for name, tensor in without_adapter(model).state_dict().items()}


def differing(ours: dict[str, Tensor], theirs: dict[str, Tensor], *, exactly: bool) -> str | None:
    """Return a description of the tensors that differ; None if none does.

    Args:
        ours: tensors by name.
        theirs: those that they are compared with.
        exactly: equal to the bit; otherwise up to a few roundings, as adapters that are merged again differ.
    """
    odd = sorted(ours.keys() ^ theirs.keys())
    if odd:
        return f"tensors that only one of them has: {', '.join(odd[:3])}"
    found: dict[str, float] = {}
    for name, tensor in ours.items():
        one, other = tensor.cpu(), theirs[name].cpu()
        if one.shape != other.shape:
            return f"{name} has shape {tuple(one.shape)} and {tuple(other.shape)}"
        if (one.dtype == other.dtype and torch.equal(one, other)) or not one.is_floating_point():
            continue
        gap, largest = (float(values.abs().max()) for values in (one.float() - other.float(), one.float()))
        epsilon = max(torch.finfo(part.dtype).eps for part in (one, other))
        if not gap <= (0.0 if exactly and one.dtype == other.dtype else 4 * epsilon * largest):
            found[name] = gap
    if not found:
        return None
    most = max(found, key=lambda name: found[name])
    return f"{len(found)} of {len(ours)} tensors, most in {most} (by up to {found[most]:.2g})"
