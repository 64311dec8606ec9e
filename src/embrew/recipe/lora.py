"""The keys of `encoder.lora`: the fields of `peft.LoraConfig`, less those that are refused."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from embrew.config.fields import keys_without

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


def _begin(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("pissa_niter_"):
        raise ValueError(f"{value!r} is random each time the model is opened, so vectors would differ; give pissa")
    return value


Pattern = Annotated[Name, AfterValidator(_pattern)]
RANGES: dict[str, Any] = {  # narrower types than those of LoraConfig
    "r": Rank,
    "lora_alpha": Alpha,
    "lora_dropout": Annotated[float, Field(ge=0, lt=1)],
    "target_modules": Pattern | Names,
    "exclude_modules": Pattern | Names | None,
    "target_parameters": Names | None,
    "layers_to_transform": Layer | Annotated[list[Layer], Field(min_length=1)] | None,
    "layers_pattern": Name | Names | None,
    "rank_pattern": dict[Pattern, Rank] | None,
    "alpha_pattern": dict[Pattern, Alpha] | None,
    "init_lora_weights": Annotated[
        bool | Literal["gaussian", "orthogonal", "pissa", "olora", "mica"], BeforeValidator(_begin)
    ],
}
_UNSUPPORTED = "needs a preparation, or inputs, that embrew does not support; leave it out"
REFUSED = {  # patterns of keys, with the reason
    "task_type": "is set by embrew; leave it out",
    "inference_mode": "disables training; leave it out",
    "layer_replication": "changes the depth of the model; leave it out",
    "trainable_token_indices": "cannot be merged; use memory_tokens or soft_prompt_tokens for trained tokens",
    "ensure_weight_tying": "is for trained copies of embeddings, which encoder.train_embeddings sets; leave it out",
    **dict.fromkeys(("*_config", "megatron_*", "use_qalora", "use_bdlora", "alora_*"), _UNSUPPORTED),
}
LoraKey = keys_without(REFUSED)
