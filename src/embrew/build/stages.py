"""How a stage is trained, as transformers' arguments."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from embrew.build.names import check_known
from embrew.build.objectives import objective
from embrew.distributed import world_size
from embrew.objectives import EmbeddingObjective, Objective
from embrew.recipe import Recipe, StageConfig

DEFAULTS: dict[str, Any] = {
    "logging_steps": 0.1,
    "save_steps": 0.2,
    "report_to": "none",
    "disable_tqdm": True,
    "ddp_find_unused_parameters": False,
}
OURS = (
    "dataloader_persistent_workers",
    "output_dir",
    "seed",
    "data_seed",
    "remove_unused_columns",
    "label_names",
    "save_total_limit",
    "eval_strategy",
    "eval_steps",
    "eval_on_start",
    "metric_for_best_model",
    "greater_is_better",
    "load_best_model_at_end",
)
BY_THE_LAUNCHER = ("fsdp", "fsdp_config", "deepspeed", "parallelism_config")


def training_arguments(
    stage: StageConfig,
    built: Objective,
    output_dir: Path,
    *,
    seed: int,
    every: float | None = None,
    autocast: bool = False,
) -> TrainingArguments:
    """The stage's `transformers.TrainingArguments`; with `every`, it is evaluated at so many steps and at its end.

    With `autocast`, it is computed in bfloat16 unless it says `bf16` or `fp16` itself.

    Raises:
        ValueError: a key that it does not have, one that embrew sets itself, or a global batch that does not divide.
    """
    given = dict(stage.training)
    check_known(given, [field.name for field in fields(TrainingArguments)], f"stage {stage.name}: training")
    for key in OURS:
        if key in given:
            hint = "; evaluation.every, metric and patience are for this" if "eval" in key or "best" in key else ""
            raise ValueError(f"stage {stage.name}: training.{key} is set by embrew; leave it out{hint}")
    for key in BY_THE_LAUNCHER:
        if key in given:
            raise ValueError(
                f"stage {stage.name}: training.{key}: how weights are spread is said to the launcher (embrew recipe "
                "copy launch/fsdp2 or launch/zero2, then accelerate launch --config_file FILE); leave it out"
            )
    if given.get("auto_find_batch_size"):
        raise ValueError(
            f"stage {stage.name}: training.auto_find_batch_size would change the experiment; give a batch that fits, "
            "for a contrastive stage by batch.mini_batch_num_tokens"
        )
    if stage.batch is not None:
        if not isinstance(built, EmbeddingObjective):
            raise ValueError(
                f"stage {stage.name}: batch.size is the global batch of a contrastive objective; "
                f"{type(built).__name__.lower()} takes training.per_device_train_batch_size"
            )
        if "per_device_train_batch_size" in given:
            raise ValueError(f"stage {stage.name}: give batch.size or training.per_device_train_batch_size, not both")
        if stage.batch.size % world_size():
            raise ValueError(
                f"stage {stage.name}: batch.size={stage.batch.size} over {world_size()} processes; it must divide"
            )
        given["per_device_train_batch_size"] = stage.batch.size // world_size()
    if autocast and not {"bf16", "fp16"} & given.keys():
        given["bf16"] = True
    given.setdefault("dataloader_drop_last", isinstance(built, EmbeddingObjective))
    if every is not None:
        given |= {"eval_strategy": "steps", "eval_steps": every}
    try:
        return TrainingArguments(
            output_dir=str(output_dir),
            seed=seed,
            data_seed=seed,
            remove_unused_columns=False,
            label_names=[],
            **{**DEFAULTS, **_for_this_machine(), **given},
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"stage {stage.name}: training: {error}") from None


def _for_this_machine() -> dict[str, Any]:
    """On a machine without an accelerator: processes that meet over gloo, and no pinned memory."""
    if torch.accelerator.is_available():
        return {}
    return {"use_cpu": True, "dataloader_pin_memory": False} | ({"ddp_backend": "gloo"} if world_size() > 1 else {})


def check_stage(recipe: Recipe, index: int) -> None:
    """Validate a stage's objective and training keys without loading anything.

    Raises:
        ValueError: as `objective` and `training_arguments`.
    """
    stage = recipe.stages[index]
    training_arguments(stage, objective(stage.objective), Path(stage.name), seed=recipe.seed)
