"""What `accelerate launch` requests: sharded weights (FSDP2), DeepSpeed; checks of what is not supported under them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from embrew.recipe import Recipe

USE_FSDP, FSDP_VERSION, FSDP_OFFLOAD = "ACCELERATE_USE_FSDP", "FSDP_VERSION", "FSDP_OFFLOAD_PARAMS"


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
