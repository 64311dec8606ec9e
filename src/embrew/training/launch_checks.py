"""What cannot be trained here, or not as it was launched, refused by name before anything is loaded."""

from __future__ import annotations

from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from embrew.objectives import EmbeddingObjective, Objective
from embrew.recipe import StageConfig


def check_launch(
    stage: StageConfig, objective: Objective, args: TrainingArguments, *, sharded: bool, evaluated: bool = False
) -> None:
    """Raise where a stage cannot be trained as the launcher asks.

    Args:
        stage: its settings.
        objective: built from them.
        args: built from them.
        sharded: whether weights are cut in pieces, by FSDP2.
        evaluated: whether the stage is evaluated on the way.

    Raises:
        ValueError: names what does not go together, and what does.
    """
    _check_reporting(stage, args)
    method = str(stage.objective["type"])
    if sharded and not isinstance(objective, EmbeddingObjective):
        raise ValueError(
            f"stage {stage.name}: {method} under FSDP2: it looks at more than embeddings, and runs the language model "
            "differently often on each process, which weights in pieces cannot follow; train this stage with plain "
            "data parallelism (torchrun, or launch/ddp) in a recipe of its own, and go on under FSDP2 with --from DIR"
        )
    if sharded and evaluated:
        raise ValueError(
            f"stage {stage.name}: evaluation.every or at under FSDP2: no process has the whole weights while they are "
            "trained; leave it out, and the stage is evaluated at its end"
        )
    if sharded and args.fp16:
        raise ValueError(f"stage {stage.name}: fp16 under FSDP2: the loss scale is not spread; use bf16: true")
    if args.deepspeed_plugin is None:
        return
    if args.deepspeed_plugin.hf_ds_config.is_zero3():
        raise ValueError(
            f"stage {stage.name}: DeepSpeed ZeRO stage 3 keeps weights in pieces that embrew cannot put together; use "
            "FSDP2 for that (embrew recipe copy launch/fsdp2), or ZeRO stage 2"
        )
    if stage.batch is not None and (stage.batch.mini_batch_size or stage.batch.mini_batch_num_tokens):
        raise ValueError(
            f"stage {stage.name}: gradient caching under DeepSpeed: it makes one backward pass a chunk, and the engine "
            "expects one in all; leave out batch.mini_batch_…, or use FSDP2 (embrew recipe copy launch/fsdp2)"
        )


def _check_reporting(stage: StageConfig, args: TrainingArguments) -> None:
    """Raise where `training.report_to` names a library that is not installed; the Trainer would find out later."""
    for name in list(args.report_to or ()):
        if name not in (*get_available_reporting_integrations(), "flyte"):  # which transformers does not look for
            extra = "'embrew[tensorboard]'" if name == "tensorboard" else f"the library of {name}"
            raise ValueError(
                f"stage {stage.name}: training.report_to={name} is not installed; pip install {extra}, or leave it out"
            )
