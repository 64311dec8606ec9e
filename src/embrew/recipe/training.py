"""The keys of a stage's `training`: the fields of `transformers.TrainingArguments`, less those that are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from embrew.config.fields import keys_without
from embrew.recipe.base import Config

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]  # of a running mean
Count = Annotated[int, Field(ge=1)]
Level = Literal["passive", "debug", "info", "warning", "error", "critical"]
Name = Annotated[str, Field(min_length=1)]


def _steps(value: int) -> int:
    if value == 0:
        raise ValueError("0 steps train nothing; give 1 or more, or -1 to train for num_train_epochs")
    return value


def _every(value: float) -> float:
    if value > 1 and not float(value).is_integer():
        raise ValueError(
            f"{value} is not a whole number of steps; give one, or a number below 1 for a share of the stage"
        )
    return value


Interval = Annotated[int | float, Field(gt=0), AfterValidator(_every)]


class Recomputing(Config):
    """The arguments of `torch.utils.checkpoint` that a recipe can hold."""

    use_reentrant: bool = False
    preserve_rng_state: bool = True
    determinism_check: Literal["default", "none"] = "default"
    debug: bool = False
    early_stop: bool = True
    every_n_layers: Count = 1
    offload: bool = False


RANGES: dict[str, Any] = {  # narrower types than those of TrainingArguments
    "max_steps": Annotated[int, Field(ge=-1), AfterValidator(_steps)],
    "num_train_epochs": Positive,
    "per_device_train_batch_size": Count,
    "gradient_accumulation_steps": Count,
    "learning_rate": Positive,
    "lr_scheduler_kwargs": dict[str, float | int | bool | str | None] | None,
    "warmup_steps": Annotated[int | float, Field(ge=0)],
    "optim_target_modules": Name | Annotated[list[Name], Field(min_length=1)] | None,
    "weight_decay": NotNegative,
    "adam_beta1": Decay,
    "adam_beta2": Decay,
    "adam_epsilon": Positive,
    "max_grad_norm": NotNegative,
    "activation_checkpointing": bool | Literal["auto"] | None,
    "activation_checkpointing_kwargs": Recomputing | None,
    "gradient_checkpointing_kwargs": Recomputing | None,
    "torch_empty_cache_steps": Count | None,
    "logging_steps": Interval,
    "log_level": Level,
    "log_level_replica": Level,
    "save_strategy": Literal["no", "steps", "epoch"],
    "save_steps": Interval,
    "dataloader_num_workers": Annotated[int, Field(ge=0)],
    "dataloader_prefetch_factor": Count | None,
    "dataloader_multiprocessing_context": Literal["fork"] | None,  # the collator cannot be pickled
    "train_sampling_strategy": Literal["random", "sequential"],
    "ddp_bucket_cap_mb": Count | None,
    "ddp_timeout": Count,
}
_EVALUATED = "is set by embrew; leave it out; use evaluation.every, metric and patience"
_NO_EFFECT = "has no effect here; leave it out"
_BY_LAUNCHER = (
    "belongs to the launcher, not to a recipe (embrew recipe copy launch/fsdp2 or launch/zero2, then accelerate launch "
    "--config_file FILE); leave it out"
)
_HUB = "is for uploads, which embrew does not make during training; leave it out, and upload the finished folder"
_ROWS = "would change which rows a batch holds, or the order of batches; leave it out"
REFUSED = {  # patterns of keys, with the reason
    "output_dir": "is set by embrew (embrew train --output); leave it out",
    **dict.fromkeys(("seed", "data_seed"), "is set by embrew; give the recipe's seed"),
    **dict.fromkeys(
        ("remove_unused_columns", "label_names", "dataloader_persistent_workers", "restore_callback_states_*"),
        "is set by embrew; leave it out",
    ),
    "save_total_limit": "is set by embrew, which keeps the two newest checkpoints of a stage; leave it out",
    "resume_from_checkpoint": "is set by embrew; resume with embrew train --resume",
    **dict.fromkeys(("eval_*", "metric_for_best_model", "greater_is_better", "load_best_model_at_end"), _EVALUATED),
    **dict.fromkeys(("fsdp*", "deepspeed", "parallelism_config", "local_rank"), _BY_LAUNCHER),
    **dict.fromkeys(("push_to_hub", "hub_*"), _HUB),
    "do_*": f"{_NO_EFFECT}: transformers' own scripts read it",
    **dict.fromkeys(
        ("*_eval_*", "*_full_eval"), f"{_NO_EFFECT}: embrew evaluates in batches of evaluation.batch_tokens"
    ),
    "*liger_kernel*": f"{_NO_EFFECT}: losses over the vocabulary are computed in chunks already",
    "label_smoothing_factor": "applies to a model's own loss, which objectives do not use; leave it out",
    "auto_find_batch_size": (
        "would change the batch size; give a batch that fits, in contrastive stages with batch.mini_batch_num_tokens"
    ),
    **dict.fromkeys(("accelerator_config", "dataloader_in_order"), _ROWS),
    "ignore_data_skip": "would train a resumed run on other rows than an uninterrupted run; leave it out",
    "save_only_model": "would write checkpoints that cannot be resumed; leave it out",
    "save_on_each_node": "would let several processes write to one folder; leave it out, and use a shared file system",
    "enable_jit_checkpoint": "would write checkpoints that embrew does not verify; leave it out",
    **dict.fromkeys(("neftune_noise_alpha", "debug"), "fails with embrew's training step; leave it out"),
    "torch_compile_*": "is set by embrew, which compiles layers for all shapes; set torch_compile: true",
}
TrainingKey = keys_without(REFUSED)
