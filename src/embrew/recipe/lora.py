"""The keys of `encoder.lora`: every field of `peft.LoraConfig`, with its type, or the reason why it is refused."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from embrew.config.allowed_keys import AllowedKeys

Rank = Annotated[int, Field(ge=1)]
Alpha = Annotated[float | int, Field(gt=0)]
Layer = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Name], Field(min_length=1)]


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(
            f"{value!r} is not a regular expression ({error}); give a list of module names, all-linear, or a pattern "
            "that matches full names"
        ) from None
    return value


def _key(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression ({error}); give the end of a module's name") from None
    return value


def _begin(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("pissa_niter_"):
        raise ValueError(f"{value!r} is random each time the model is opened, so vectors would differ; give pissa")
    return value


Pattern = Annotated[Name, AfterValidator(_pattern)]
Key = Annotated[Name, AfterValidator(_key)]
TYPES: dict[str, Any] = {
    "r": Rank,
    "lora_alpha": Alpha,
    "lora_dropout": Annotated[float, Field(ge=0, lt=1)],
    "target_modules": Pattern | Names,
    "exclude_modules": Pattern | Names | None,
    "target_parameters": Names | None,
    "modules_to_save": list[Name] | None,
    "layers_to_transform": Layer | Annotated[list[Layer], Field(min_length=1)] | None,
    "layers_pattern": Name | Names | None,
    "rank_pattern": dict[Key, Rank] | None,
    "alpha_pattern": dict[Key, Alpha] | None,
    "bias": Literal["none", "all", "lora_only"],
    "lora_bias": bool,
    "use_rslora": bool,
    "use_dora": bool,
    "fan_in_fan_out": bool,
    "init_lora_weights": Annotated[
        bool | Literal["gaussian", "orthogonal", "pissa", "olora", "mica"], BeforeValidator(_begin)
    ],
}
_CHANGES_BASE = "changes the base weights, which are not saved with an adapter; leave it out"
_UNSUPPORTED = "needs a preparation, or inputs, that embrew does not support; leave it out"
_NOT_HERE = (
    "eva_config", "megatron_config", "megatron_core", "use_qalora", "qalora_group_size", "alora_invocation_tokens",
    "use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config", "runtime_config",
)  # fmt: skip
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("task_type", "peft_type", "peft_version", "auto_mapping", "base_model_name_or_path", "revision"),
        "is set by embrew; leave it out",
    ),
    "inference_mode": "disables training; leave it out",
    "layer_replication": "changes the depth of the model; leave it out",
    "loftq_config": _CHANGES_BASE,
    "corda_config": _CHANGES_BASE,
    "lora_ga_config": _CHANGES_BASE,
    **dict.fromkeys(_NOT_HERE, _UNSUPPORTED),
    "trainable_token_indices": "cannot be merged; use memory_tokens or soft_prompt_tokens for trained tokens",
    "ensure_weight_tying": "is for trained copies of embeddings, which encoder.train_embeddings sets; leave it out",
}
LORA = AllowedKeys(TYPES, refused=REFUSED, of="peft.LoraConfig")
