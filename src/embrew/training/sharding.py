"""Weights in pieces over the processes: FSDP2, which is PyTorch's `fully_shard`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from embrew.distributed import world_size
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.forward import layers_of

USE, VERSION, OFFLOAD = "ACCELERATE_USE_FSDP", "FSDP_VERSION", "FSDP_OFFLOAD_PARAMS"
PASSES = ("hidden_states", "read_layers")  # what of a backbone runs its layers


@contextmanager
def asked_by_launcher() -> Iterator[bool]:
    """Whether `accelerate launch` was told to shard; meanwhile nobody else is.

    embrew shards by itself: accelerate would wrap the whole training step, within which gradient caching could not run
    its passes, and does nothing at all on CPUs.

    Raises:
        ValueError: FSDP of the first version, or offloading to the CPU, is asked for.
    """
    if os.environ.get(USE, "false").lower() != "true":
        yield False
        return
    if os.environ.get(VERSION, "1") != "2":
        raise ValueError("the launcher asks for FSDP 1, which embrew does not offer; set fsdp_version: 2")
    if os.environ.get(OFFLOAD, "false").lower() == "true":
        raise ValueError("the launcher asks for fsdp_offload_params, which embrew does not offer; set it to false")
    value = os.environ.pop(USE)
    try:
        yield True
    finally:
        os.environ[USE] = value


def shard(encoder: Encoder, device: torch.device, *, compute: torch.dtype | None = None) -> None:
    """Cut the backbone's weights, trained and frozen, into one piece a process; in place.

    Each layer is gathered when it is run and let go after it; embeddings, final norm and memory tokens are gathered for
    as long as a pass lasts. One pass through the backbone is one pass of FSDP's root, whatever calls it.

    Args:
        encoder: its weights may still be on the CPU; they go to `device` in pieces.
        device: of this process.
        compute: dtype that weights are gathered in, where it is not their own; gradients are summed in float32.

    Raises:
        ValueError: something is trained outside the backbone; trained weights of several dtypes.
    """
    backbone = encoder.backbone
    inside = {id(parameter) for parameter in backbone.parameters()}
    outside = [name for name, p in encoder.named_parameters() if p.requires_grad and id(p) not in inside]
    if outside:
        raise ValueError(f"{', '.join(outside)}: trained outside the language model, which FSDP2 here does not cover")
    dtypes = {str(p.dtype).removeprefix("torch.") for p in backbone.parameters() if p.requires_grad}
    if len(dtypes) > 1:
        raise ValueError(
            f"trained weights of several dtypes ({', '.join(sorted(dtypes))}) cannot be sharded together; set "
            "encoder.dtype: float32 (and training.bf16: true to compute in bfloat16)"
        )
    options: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (world_size(),)),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=compute, reduce_dtype=None if compute is None else torch.float32, cast_forward_inputs=False
        ),
    }
    for layer in layers_of(backbone.inner):
        fully_shard(layer, reshard_after_forward=True, **options)
    fully_shard(backbone, **options)
    for name in PASSES:
        register_fsdp_forward_method(backbone, name)


def is_sharded(module: nn.Module) -> bool:
    """Whether any part of a module is in pieces."""
    return any(isinstance(part, FSDPModule) for part in module.modules())


def whole(tensor: Tensor) -> Tensor:
    """A tensor put together from its pieces, on the CPU; all processes must call. Others as they are, on the CPU."""
    detached = tensor.detach()
    return (detached.full_tensor() if isinstance(detached, DTensor) else detached).cpu().contiguous()


def put(parameter: Tensor, value: Tensor) -> None:
    """Write a whole tensor into a parameter, in pieces or not; all processes must call."""
    with torch.no_grad():
        parameter.copy_(_like(value, parameter))


def whole_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimiser's `state_dict` as one process would have it; all processes must call."""
    moments = {
        number: {key: whole(value) if isinstance(value, Tensor) else value for key, value in found.items()}
        for number, found in state["state"].items()
    }
    return {**state, "state": moments}


def pieces_of_state(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What `whole_state` made, cut as the optimiser's parameters are; all processes must call."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        number: {
            key: _like(value, parameters[number])
            if isinstance(value, Tensor) and value.shape == parameters[number].shape
            else value
            for key, value in found.items()
        }
        for number, found in state["state"].items()
    }
    return {**state, "state": moments}


def _like(value: Tensor, parameter: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return value
    there = value.to(parameter.device)
    return distribute_tensor(there, parameter.device_mesh, parameter.placements)
