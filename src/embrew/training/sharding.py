"""What `accelerate launch` requests, and checks of what is not supported; sharded weights (FSDP2, `fully_shard`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from embrew.distributed import world_size
from embrew.encoder import Encoder
from embrew.model.layers import layers_of
from embrew.recipe import Recipe

USE_FSDP, FSDP_VERSION, FSDP_OFFLOAD = "ACCELERATE_USE_FSDP", "FSDP_VERSION", "FSDP_OFFLOAD_PARAMS"
PASSES = ("hidden_states", "read_layers", "raw_states", "original_states")  # methods that run a model's layers


@contextmanager
def sharding_requested() -> Iterator[bool]:
    """Yield whether FSDP was requested from `accelerate launch`; accelerate's own flag is cleared meanwhile.

    embrew shards by itself: accelerate would wrap the whole training step, which gradient caching does not support, and
    does nothing on CPUs.

    Raises:
        ValueError: FSDP version 1, or offloading to the CPU, is requested.
    """
    if os.environ.get(USE_FSDP, "false").lower() != "true":
        yield False
        return
    if os.environ.get(FSDP_VERSION, "1") != "2":
        raise ValueError("the launcher requests FSDP 1, which embrew does not support; set fsdp_version: 2")
    if os.environ.get(FSDP_OFFLOAD, "false").lower() == "true":
        raise ValueError("the launcher requests fsdp_offload_params, which embrew does not support; set it to false")
    value = os.environ.pop(USE_FSDP)
    try:
        yield True
    finally:
        os.environ[USE_FSDP] = value


def check_launch(recipe: Recipe, index: int, args: TrainingArguments, *, sharded: bool) -> None:
    """Raise if stage `index` cannot be trained in the mode that the launcher requests.

    Args:
        recipe: what is trained.
        index: index of the stage.
        args: training arguments of the stage.
        sharded: whether weights are sharded (FSDP2).

    Raises:
        ValueError: names the unsupported combination, and an alternative.
    """
    stage = recipe.stages[index]
    for name in list(args.report_to or ()):  # the Trainer would raise later
        if name not in (*get_available_reporting_integrations(), "flyte"):  # transformers does not check for it
            extra = "'embrew[tensorboard]'" if name == "tensorboard" else f"the library of {name}"
            raise ValueError(
                f"stage {stage.name}: training.report_to={name} is not installed; pip install {extra}, or leave it out"
            )
    if sharded and recipe.encoder.quantization is not None:
        raise ValueError(
            "encoder.quantization under FSDP2: 4-bit weights cannot be sharded; train with plain data parallelism "
            "(torchrun, or launch/ddp), where each process holds them all, or leave quantization out"
        )
    if sharded and recipe.stage_evaluation(index) is not None:
        raise ValueError(
            f"stage {stage.name}: evaluation.every and at are not supported under FSDP2: during training, no "
            "process holds all weights; leave them out, and the stage is evaluated at its end"
        )
    if sharded and args.fp16:
        raise ValueError(f"stage {stage.name}: fp16 is not supported under FSDP2 (no gradient scaling); use bf16: true")
    if args.deepspeed_plugin is None:
        return
    if args.deepspeed_plugin.hf_ds_config.is_zero3():
        raise ValueError(
            f"stage {stage.name}: DeepSpeed ZeRO stage 3 is not supported, since embrew cannot gather its "
            "sharded weights; use FSDP2 (embrew recipe copy launch/fsdp2), or ZeRO stage 2"
        )
    if stage.batch is not None and (stage.batch.mini_batch_size or stage.batch.mini_batch_num_tokens):
        raise ValueError(
            f"stage {stage.name}: gradient caching is not supported under DeepSpeed: it runs one backward pass per "
            "chunk, and the engine expects one per step; leave out batch.mini_batch_…, or use FSDP2 (embrew recipe "
            "copy launch/fsdp2)"
        )


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
