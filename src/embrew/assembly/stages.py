"""The `TrainingArguments` of a stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.utils import is_torch_tf32_available

from embrew.config.fields import check_fields, fields_model
from embrew.distributed import world_size
from embrew.methods import EmbeddingObjective, Objective
from embrew.recipe import StageConfig, training

NOT_THE_TRAINERS = [
    ("torch_compile", True),  # the Trainer would compile the whole step; `training.stages` compiles its layers
]
RECOMPUTES = "activation_checkpointing"  # of TrainingArguments
OLD_NAMES = {  # before transformers 5.20
    name: name.replace("activation", "gradient")
    for name in (RECOMPUTES, f"{RECOMPUTES}_kwargs")
    if name not in TrainingArguments.__dataclass_fields__
}
DEFAULTS: dict[str, Any] = {
    "logging_steps": 0.1,
    "save_steps": 0.2,
    "report_to": "none",
    "disable_tqdm": False,
    "ddp_find_unused_parameters": False,
}

Integration: Any = Literal["none", "all", *INTEGRATION_TO_CALLBACK]
TRAINING = fields_model(
    TrainingArguments, training.RANGES | {"report_to": Integration | list[Integration] | None}, training.REFUSED
)


def training_arguments(
    stage: StageConfig,
    built: Objective,
    output_dir: Path,
    *,
    seed: int,
    every: float | None = None,
    autocast: bool = False,
) -> TrainingArguments:
    """Return a stage's `transformers.TrainingArguments`.

    Args:
        stage: the stage.
        built: its objective.
        output_dir: folder of its checkpoints.
        seed: random seed of training and of the order of rows.
        every: steps between evaluations (below 1: a share of the stage); None: no evaluation within the stage.
        autocast: train with bfloat16 autocast, unless the stage sets `bf16` or `fp16`.

    Raises:
        ValueError: wrong or incompatible settings, or a global batch that the number of processes does not divide.
    """
    checked = check_fields(TRAINING, stage.training, path=("stages", stage.name, "training"))
    values = checked.model_dump(exclude_unset=True)
    given = {key: value for key, value in values.items() if (key, value) not in NOT_THE_TRAINERS}
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
                f"stage {stage.name}: batch.size={stage.batch.size} is not divisible by {world_size()} processes"
            )
        given["per_device_train_batch_size"] = stage.batch.size // world_size()
    if autocast and not {"bf16", "fp16"} & given.keys():
        given["bf16"] = True
    given["dataloader_drop_last"] = drops_last(stage, built)
    if every is not None:
        given |= {"eval_strategy": "steps", "eval_steps": every}
    try:
        return TrainingArguments(
            output_dir=str(output_dir),
            seed=seed,
            data_seed=seed,
            remove_unused_columns=False,
            label_names=[],
            **{OLD_NAMES.get(key, key): value for key, value in (DEFAULTS | _for_this_machine() | given).items()},
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"stage {stage.name}: training: {error}") from None


def drops_last(stage: StageConfig, built: Objective) -> bool:
    """Return whether the rows of an epoch that do not fill a batch are left out: by default, where it is compared."""
    return bool(stage.training.get("dataloader_drop_last", isinstance(built, EmbeddingObjective)))


def check_fills_batch(stage: StageConfig, rows: int, needed: int) -> None:
    """Raise ValueError where a stage has fewer rows than a batch that must be full, of all processes together."""
    if rows < needed:
        raise ValueError(f"stage {stage.name}: {rows} rows, fewer than one batch of {needed}; lower batch.size")


def _for_this_machine() -> dict[str, Any]:
    """Return the arguments for the machine's kind.

    With an accelerator, copies of batches are not waited for, and a GPU that has TF32 uses it; without one: the gloo
    backend, and no pinned memory.
    """
    if torch.accelerator.is_available():
        fast = {"tf32": True} if is_torch_tf32_available() else {}
        return {"accelerator_config": {"non_blocking": True}, **fast}
    return {"use_cpu": True, "dataloader_pin_memory": False} | ({"ddp_backend": "gloo"} if world_size() > 1 else {})
