"""The keys of a stage's `training`: every field of `transformers.TrainingArguments`, with its type.

A field is either allowed in a recipe (`TRAINING.types`), or refused with the reason (`TRAINING.refused`): embrew or the
launcher sets it, it has no effect with embrew's trainer, or it does harm.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from embrew.config.allowed_keys import AllowedKeys

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]  # of a running mean
Count = Annotated[int, Field(ge=1)]
Level = Literal["passive", "debug", "info", "warning", "error", "critical"]
Name = Annotated[str, Field(min_length=1)]
Integration = Literal[
    "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "kubeflow", "mlflow", "neptune",
    "swanlab", "tensorboard", "trackio", "wandb",
]  # fmt: skip
UNSUPPORTED_OPTIMIZERS = {
    "lomo": "updates the weights in the backward pass; gradient caching and accumulation run several per step",
    "adalomo": "updates the weights in the backward pass; gradient caching and accumulation run several per step",
    **dict.fromkeys(
        (
            "galore_adamw_layerwise",
            "galore_adamw_8bit_layerwise",
            "galore_adafactor_layerwise",
            "apollo_adamw_layerwise",
        ),
        "updates each layer in the backward pass; gradient caching and accumulation run several per step",
    ),
}
OPTIMIZERS = (
    "adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adafactor", "adamw_anyprecision",
    "adamw_torch_4bit", "adamw_torch_8bit", "ademamix", "sgd", "adagrad", "adamw_bnb_8bit", "adamw_8bit",
    "ademamix_8bit", "lion_8bit", "lion_32bit", "paged_adamw_32bit", "paged_adamw_8bit", "paged_ademamix_32bit",
    "paged_ademamix_8bit", "paged_lion_32bit", "paged_lion_8bit", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_8bit",
    "rmsprop_bnb_32bit", "galore_adamw", "galore_adamw_8bit", "galore_adafactor", "grokadamw", "schedule_free_radam",
    "schedule_free_adamw", "schedule_free_sgd", "apollo_adamw", "stable_adamw",
)  # fmt: skip
SCHEDULES = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
    "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay",
)  # fmt: skip
UNSUPPORTED_SCHEDULES = dict.fromkeys(
    ("reduce_lr_on_plateau", "greedy"), "needs an evaluation loss, and embrew evaluates by scores"
)


def _one_of(names: tuple[str, ...], unsupported: dict[str, str]) -> Any:
    def check(value: Any) -> Any:
        if isinstance(value, str) and value in unsupported:
            raise ValueError(f"{value!r} {unsupported[value]}; choose another")
        return value

    return Annotated[Literal[names], BeforeValidator(check)]


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
CHECKPOINTING = AllowedKeys(
    {
        "use_reentrant": bool,
        "preserve_rng_state": bool,
        "determinism_check": Literal["default", "none"],
        "debug": bool,
        "early_stop": bool,
        "every_n_layers": Count,
        "offload": bool,
    },
    refused={"context_fn": "is a function, which a recipe cannot hold; leave it out"},
    of="activation checkpointing",
)

TYPES: dict[str, Any] = {
    # how long
    "max_steps": Annotated[int, Field(ge=-1), AfterValidator(_steps)],
    "num_train_epochs": Positive,
    "per_device_train_batch_size": Count,
    "gradient_accumulation_steps": Count,
    # optimiser and learning rate
    "learning_rate": Positive,
    "lr_scheduler_type": _one_of(SCHEDULES, UNSUPPORTED_SCHEDULES),
    "lr_scheduler_kwargs": dict[str, float | int | bool | str | None] | None,
    "warmup_steps": Annotated[int | float, Field(ge=0)],
    "optim": _one_of(OPTIMIZERS, UNSUPPORTED_OPTIMIZERS),
    "optim_args": str | None,
    "optim_target_modules": Name | Annotated[list[Name], Field(min_length=1)] | None,
    "weight_decay": NotNegative,
    "adam_beta1": Decay,
    "adam_beta2": Decay,
    "adam_epsilon": Positive,
    "max_grad_norm": NotNegative,
    # arithmetic and memory
    "bf16": bool,
    "fp16": bool,
    "tf32": bool | None,
    "use_cpu": bool,
    "activation_checkpointing": bool | Literal["auto"] | None,
    "activation_checkpointing_kwargs": Annotated[dict[str, Any], CHECKPOINTING] | None,
    "gradient_checkpointing": bool | None,  # its name before transformers 5.20
    "gradient_checkpointing_kwargs": Annotated[dict[str, Any], CHECKPOINTING] | None,
    "torch_compile": bool,  # of the layers, by embrew
    "torch_empty_cache_steps": Count | None,
    "full_determinism": bool,
    # log and checkpoints
    "logging_strategy": Literal["no", "steps", "epoch"],
    "logging_steps": Interval,
    "logging_first_step": bool,
    "log_level": Level,
    "log_level_replica": Level,
    "disable_tqdm": bool | None,
    "report_to": Literal["none", "all", Integration] | list[Integration] | None,
    "run_name": str | None,
    "project": str,
    "save_strategy": Literal["no", "steps", "epoch"],
    "save_steps": Interval,
    # reading rows
    "dataloader_drop_last": bool,
    "dataloader_num_workers": Annotated[int, Field(ge=0)],
    "dataloader_pin_memory": bool,
    "dataloader_prefetch_factor": Count | None,
    "dataloader_multiprocessing_context": Literal["fork"] | None,  # the collator cannot be pickled
    "train_sampling_strategy": Literal["random", "sequential"],
    # several processes
    "ddp_backend": Name | None,
    "ddp_bucket_cap_mb": Count | None,
    "ddp_broadcast_buffers": bool | None,
    "ddp_find_unused_parameters": bool | None,
    "ddp_static_graph": bool | None,
    "ddp_timeout": Count,
}

_EVALUATED = "use evaluation.every, metric and patience"
_NO_EFFECT = "has no effect here; leave it out"
_BY_LAUNCHER = (
    "belongs to the launcher, not to a recipe (embrew recipe copy launch/fsdp2 or launch/zero2, then accelerate launch "
    "--config_file FILE); leave it out"
)
_HUB = "is for uploads, which embrew does not make during training; leave it out, and upload the finished folder"
_UPLOADING = (
    "push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision",
    "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id",
)  # fmt: skip
_EVALUATING = (
    "per_device_eval_batch_size", "prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object",
    "eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics", "bf16_full_eval", "fp16_full_eval",
)  # fmt: skip
REFUSED: dict[str, str] = {
    # set by embrew
    "output_dir": "is set by embrew (embrew train --output); leave it out",
    "seed": "is set by embrew; give the recipe's seed",
    "data_seed": "is set by embrew; give the recipe's seed",
    "remove_unused_columns": "is set by embrew; leave it out",
    "label_names": "is set by embrew; leave it out",
    "dataloader_persistent_workers": "is set by embrew, since workers depend on the epoch's seed; leave it out",
    "save_total_limit": "is set by embrew, which keeps the two newest checkpoints of a stage; leave it out",
    "resume_from_checkpoint": "is set by embrew; resume with embrew train --resume",
    "eval_strategy": f"is set by embrew; leave it out; {_EVALUATED}",
    "eval_steps": f"is set by embrew; leave it out; {_EVALUATED}",
    "eval_on_start": f"is set by embrew, which scores the untrained model first; leave it out; {_EVALUATED}",
    "eval_delay": f"is set by embrew; leave it out; {_EVALUATED}",
    "metric_for_best_model": f"is set by embrew; leave it out; {_EVALUATED}",
    "greater_is_better": f"is set by embrew; leave it out; {_EVALUATED}",
    "load_best_model_at_end": f"is set by embrew; leave it out; {_EVALUATED}",
    # set by the launcher
    **dict.fromkeys(("fsdp", "fsdp_config", "deepspeed", "parallelism_config"), _BY_LAUNCHER),
    "local_rank": "is set by the launcher (torchrun, accelerate launch); leave it out",
    # uploads
    **dict.fromkeys(_UPLOADING, _HUB),
    # no effect
    **dict.fromkeys(("do_train", "do_eval", "do_predict"), f"{_NO_EFFECT}: transformers' own scripts read it"),
    **dict.fromkeys(_EVALUATING, f"{_NO_EFFECT}: embrew evaluates in batches of evaluation.batch_tokens"),
    "average_tokens_across_devices": f"{_NO_EFFECT}: token means are always over the global batch",
    "label_smoothing_factor": "applies to a model's own loss, which objectives do not use; leave it out",
    "use_cache": f"{_NO_EFFECT}: objectives decide whether states are cached",
    "use_liger_kernel": f"{_NO_EFFECT}: losses over the vocabulary are computed in chunks already",
    "liger_kernel_config": f"{_NO_EFFECT}: losses over the vocabulary are computed in chunks already",
    "include_num_input_tokens_seen": f"{_NO_EFFECT}: batches have no input_ids",
    "length_column_name": f"{_NO_EFFECT}: rows have no column of lengths",
    "log_on_each_node": f"{_NO_EFFECT}: only the first process logs",
    "logging_nan_inf_filter": f"{_NO_EFFECT}: a loss that is NaN or infinite ends the training",
    "skip_memory_metrics": f"{_NO_EFFECT}: embrew logs no memory",
    # harm
    "auto_find_batch_size": (
        "would change the batch size; give a batch that fits, in contrastive stages with batch.mini_batch_num_tokens"
    ),
    "accelerator_config": "would change which rows a batch holds, or how gradients are accumulated; leave it out",
    "dataloader_in_order": "would make the order of batches depend on timing; leave it out",
    "debug": "fails with embrew's training step; leave it out: a NaN loss ends the training and names the step",
    "enable_jit_checkpoint": "would write checkpoints that embrew does not verify; leave it out",
    "ignore_data_skip": "would train a resumed run on other rows than an uninterrupted run; leave it out",
    "restore_callback_states_from_checkpoint": "is set by embrew; leave it out",
    "save_on_each_node": "would let several processes write to one folder; leave it out, and use a shared file system",
    "save_only_model": "would write checkpoints that cannot be resumed; leave it out",
    "neftune_noise_alpha": "fails with embrew's training step, which passes no input embeddings; leave it out",
    **dict.fromkeys(
        ("torch_compile_backend", "torch_compile_mode"),
        "is set by embrew, which compiles layers for all shapes; leave it out, and set torch_compile: true",
    ),
}
TRAINING = AllowedKeys(TYPES, refused=REFUSED, of="transformers.TrainingArguments")
