"""The encoder of a recipe, the keys of its LoRA, and how variants of a text are written."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from embrew.settings.base import Quantization
from embrew.settings.encoder import EncoderSettings, Length, Pooling
from embrew.settings.validation import Config, refusing
from embrew.text.pattern import check_words_after, split_pattern
from embrew.text.texts import SIDES

Rank = Annotated[int, Field(ge=1)]
Alpha = Annotated[float | int, Field(gt=0)]
Layer = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Name], Field(min_length=1)]


def _check_regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(
            f"{value!r} is not a regular expression ({error}); give a list of module names, all-linear, or a pattern "
            "that matches full names"
        ) from None
    return value


def _check_init(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("pissa_niter_"):
        raise ValueError(f"{value!r} is random each time the model is opened, so vectors would differ; give pissa")
    return value


Pattern = Annotated[Name, AfterValidator(_check_regex)]
LORA_TYPES: dict[str, Any] = {  # narrower types than those of LoraConfig
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
        bool | Literal["gaussian", "orthogonal", "pissa", "olora", "mica"], BeforeValidator(_check_init)
    ],
}
_UNSUPPORTED = "needs a preparation, or inputs, that embrew does not support; leave it out"
LORA_REFUSED = {  # patterns of keys, with the reason
    "task_type": "is set by embrew; leave it out",
    "inference_mode": "disables training; leave it out",
    "layer_replication": "changes the depth of the model; leave it out",
    "trainable_token_indices": "cannot be merged; use memory_tokens or soft_prompt_tokens for trained tokens",
    "ensure_weight_tying": "is for trained copies of embeddings, which encoder.train_embeddings sets; leave it out",
    **dict.fromkeys(("*_config", "megatron_*", "use_qalora", "use_bdlora", "alora_*"), _UNSUPPORTED),
}


class PromptsConfig(Config):
    """What fills `{instruction}` for queries and for documents."""

    query: str = ""
    document: str = ""


class MaxLengthConfig(Config):
    """Limits in tokens, everything included."""

    query: Length = 512
    document: Length = 512


class MemoryWords(Config):
    """Memory tokens start as the tokens of these words; as many as there are memory tokens."""

    words: Annotated[str, Field(min_length=1)]


class Variants(Config):
    """GenEOL (arXiv 2410.14635): a generator rewrites each text, and the embedding is the mean over all versions.

    Attributes:
        prompts: patterns with `{text}`, one per way to rewrite; the first line after a prompt is a variant.
        per_prompt: variants per prompt.
        then: pattern by which each variant is rewritten once more; None: it is not.
        generator: language model that writes them, `nano`, a folder or a Hub id; None: the encoder's own.
        max_new_tokens: maximum number of tokens of a variant.
        temperature: sampling temperature.
        top_p: share of the probability that is sampled from.
    """

    prompts: Annotated[list[str], Field(min_length=1)]
    per_prompt: Annotated[int, Field(ge=1)] = 8
    then: str | None = None
    generator: Name | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] = 64
    temperature: Annotated[float, Field(gt=0)] = 0.7
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0

    @field_validator("prompts", "then")
    @classmethod
    def _check_patterns(cls, value: list[str] | str | None) -> list[str] | str | None:
        for pattern in [value] if isinstance(value, str) else value or []:
            split_pattern(pattern)
        return value


class BackboneConfig(Config):
    """The language model under an encoder, what is added to it, and what of it is trained."""

    model: Annotated[str, Field(min_length=1)]
    adapter: Annotated[str, Field(min_length=1)] | None = None  # a LoRA that peft saved, merged first
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    attn_implementation: str | None = None
    memory_tokens: Annotated[int, Field(ge=0)] = 0
    memory_init: Literal["vocab", "noise", "mean"] | MemoryWords = "vocab"
    soft_prompt_tokens: Annotated[int, Field(gt=0)] | None = None
    lora: dict[Annotated[str, refusing(LORA_REFUSED)], Any] | None = None
    quantization: Quantization | None = None
    train_embeddings: Literal["memory", "full"] = "memory"
    trust_remote_code: bool = False
    variants: Variants | None = None  # for evaluation without training


class EncoderConfig(EncoderSettings, BackboneConfig):
    """What turns a text into a vector: a language model or encoder, and the settings of `EncoderSettings`.

    Recipes write some of these settings in full: pooling is required, prompts are those of queries and documents.
    """

    pooling: Pooling
    memory_ratio: Annotated[float, Field(gt=0)] | None = None  # of folders from recipes: 20.0, not 20
    prompts: PromptsConfig = PromptsConfig()  # type: ignore[assignment]
    default_prompt_name: Literal["query", "document"] | None = None
    max_length: MaxLengthConfig = MaxLengthConfig()  # type: ignore[assignment]

    @property
    def settings(self) -> EncoderSettings:
        """The settings of the encoder, as `Encoder` holds them."""
        values = {name: getattr(self, name) for name in EncoderSettings.model_fields}
        return EncoderSettings.create(**{**values, "prompts": dict(self.prompts), "max_length": dict(self.max_length)})

    @model_validator(mode="before")
    @classmethod
    def _set_words_after(cls, values: Any) -> Any:
        """Set `words_after` where the template's default is `joined`, so that a resolved recipe contains it."""
        if not isinstance(values, dict) or values.get("words_after") is not None:
            return values
        template = values.get("template")
        try:
            words_after = check_words_after(None, [template] if isinstance(template, str) else list(template or []))
        except (TypeError, ValueError):  # the template is refused later, with its line in the file
            return values
        return values if words_after == "separate" else {**values, "words_after": words_after}

    @model_validator(mode="after")
    def _check_recipe(self) -> EncoderConfig:
        self.check_learned_tokens(self.memory_tokens, self.soft_prompt_tokens or 0)
        if self.attention == "memory_causal" and not self.memory_tokens:
            raise ValueError(
                "attention='memory_causal' with memory_tokens=0; it orders memory tokens among themselves, "
                "so give memory_tokens and {memory}, or choose causal or bidirectional"
            )
        if not any(pattern.has_instruction for pattern in self.patterns) and any(dict(self.prompts).values()):
            raise ValueError(f"prompts are set, but template={self.template!r} has no {{instruction}} to put them in")
        return self


def recipe_keys(settings: EncoderSettings) -> dict[str, Any]:
    """Return an encoder's settings as the keys of a recipe's `encoder`; of its prompts those of `SIDES`."""
    values = json.loads(json.dumps(settings.as_dict()))
    prompts, default = values["prompts"], values.pop("default_prompt_name", None)
    values["prompts"] = {side: prompts[side] for side in SIDES}
    side = None if default is None else next((side for side in SIDES if prompts[side] == prompts[default]), None)
    return values if side is None else {**values, "default_prompt_name": side}
