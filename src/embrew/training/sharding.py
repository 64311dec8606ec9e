"""Sharded weights: FSDP2, which is PyTorch's `fully_shard`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from embrew.distributed import world_size
from embrew.encoder import Encoder
from embrew.model.layers import layers_of

PASSES = ("hidden_states", "read_layers", "raw_states", "original_states")  # methods that run a model's layers


def shard(encoder: Encoder, device: torch.device, *, compute: torch.dtype | None = None) -> None:
    """Shard an encoder's weights, trained and frozen, over the processes; in place.

    Each layer is gathered for its forward pass and released after it. Embeddings, head, final norm and memory tokens
    are gathered for a forward pass and stay until the next backward pass has ended, so that a loss can read the head.
    Each forward pass through the backbone is one of FSDP's root module; a second copy of the original LM, and the
    modules after the backbone, have separate ones.

    Args:
        encoder: its weights may still be on the CPU; the shards are moved to `device`.
        device: device of this process.
        compute: dtype of the language model's gathered weights, if not their own; gradients are summed in float32.

    Raises:
        ValueError: trained weights have several dtypes.
    """
    backbone = encoder.backbone
    dtypes = {str(p.dtype).removeprefix("torch.") for p in backbone.parameters() if p.requires_grad}
    if len(dtypes) > 1:
        raise ValueError(
            f"trained weights of several dtypes ({', '.join(sorted(dtypes))}) cannot be sharded together; set "
            "encoder.dtype: float32 (and training.bf16: true to compute in bfloat16)"
        )
    policy = MixedPrecisionPolicy(
        param_dtype=compute, reduce_dtype=None if compute is None else torch.float32, cast_forward_inputs=False
    )
    mesh = init_device_mesh(device.type, (world_size(),))
    frozen = backbone.frozen_copy
    models = [(backbone, backbone.inner)] + ([] if frozen is None else [(frozen, frozen.inner)])
    for module, inner in models:
        for layer in dict.fromkeys(layers_of(inner)):  # ALBERT's are the same one
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        fully_shard(module, mesh=mesh, mp_policy=policy)
        for name in PASSES:
            if hasattr(module, name):
                register_fsdp_forward_method(module, name)
    for child in encoder.children():
        if child is not backbone:
            shard_whole(child, device)


def shard_whole(module: nn.Module, device: torch.device) -> None:
    """Shard a small module, which is gathered whole for its forward pass, in its own dtype; in place."""
    fully_shard(module, mesh=init_device_mesh(device.type, (world_size(),)))


def is_sharded(module: nn.Module) -> bool:
    """Return whether any part of a module is sharded."""
    return any(isinstance(part, FSDPModule) for part in module.modules())


def gathered(tensor: Tensor) -> Tensor:
    """Return a sharded tensor gathered, or any other tensor, on the CPU; all processes must call."""
    detached = tensor.detach()
    return (detached.full_tensor() if isinstance(detached, DTensor) else detached).cpu().contiguous()


def sharded_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a whole tensor sharded as a parameter is; all processes must call."""
    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
