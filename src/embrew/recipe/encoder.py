"""The encoder of a recipe."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from embrew.modeling.settings.demonstrations import Compress, Demonstrations, Format
from embrew.modeling.text.pattern import WordsAfter, check_words_after, split_pattern
from embrew.recipe.base import Config
from embrew.recipe.lora import LORA


class PoolingConfig(Config):
    """How token states become one vector."""

    mode: Literal["cls", "last", "mean", "weighted_mean", "concat"]
    over: Literal["all", "text", "echo", "memory"] = "all"
    latents: Annotated[int, Field(gt=0)] | None = None
    heads: Annotated[int, Field(gt=0)] | None = None
    head_width: Annotated[int, Field(gt=0)] | None = None


class PromptsConfig(Config):
    """What fills `{instruction}` for queries and for documents."""

    query: str = ""
    document: str = ""


class MaxLengthConfig(Config):
    """Limits in tokens, everything included."""

    query: Annotated[int, Field(gt=0)] = 512
    document: Annotated[int, Field(gt=0)] = 512


class DemonstrationsConfig(Config):
    """How demonstrations of a task stand in a prompt; see `modeling.settings.demonstrations`."""

    format: Format = "pair"
    compress: Compress = "pair"
    every: Annotated[int, Field(gt=0)] | None = None
    learnable: Annotated[int, Field(gt=0)] | None = None
    normalize: bool = False
    between: str = "\n"
    end: str = "\n\n"
    text_tokens: Annotated[int, Field(gt=0)] = 256
    budget: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check_together(self) -> DemonstrationsConfig:
        Demonstrations(**self.model_dump())
        return self


class EncoderConfig(Config):
    """What turns a text into a vector: a language model or encoder, a template, attention and pooling."""

    model: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    attn_implementation: str | None = None
    template: str | Annotated[list[str], Field(min_length=1)] = "{instruction}{text}"
    preparation: Literal["none", "sentence"] = "none"
    memory_tokens: Annotated[int, Field(ge=0)] = 0
    memory_ratio: Annotated[float, Field(gt=0)] | None = None
    words_after: WordsAfter | None = None
    memory_init: Literal["vocab", "noise", "mean"] = "vocab"
    soft_prompt_tokens: Annotated[int, Field(gt=0)] | None = None
    attention: Literal["causal", "bidirectional", "memory_causal"] = "causal"
    pooling: PoolingConfig
    prompts: PromptsConfig = PromptsConfig()
    default_prompt_name: Literal["query", "document"] | None = None
    max_length: MaxLengthConfig = MaxLengthConfig()
    normalize: bool = True
    demonstrations: DemonstrationsConfig | None = None
    lora: Annotated[dict[str, Any], LORA] | None = None
    train_embeddings: Literal["memory", "full"] = "memory"
    trust_remote_code: bool = False

    @model_validator(mode="before")
    @classmethod
    def _say_words_after(cls, values: Any) -> Any:
        """Set `words_after` where the template asks for `joined` by default, so that a resolved recipe says so."""
        if not isinstance(values, dict) or values.get("words_after") is not None:
            return values
        template = values.get("template")
        try:
            found = check_words_after(None, [template] if isinstance(template, str) else list(template or []))
        except (TypeError, ValueError):  # the template is refused below, with its place in the file
            return values
        return values if found == "separate" else {**values, "words_after": found}

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str | list[str]) -> str | list[str]:
        for pattern in [template] if isinstance(template, str) else template:
            split_pattern(pattern)
        return template

    @property
    def templates(self) -> list[str]:
        """`template` as a list, whether one is given or several."""
        return [self.template] if isinstance(self.template, str) else self.template

    @model_validator(mode="after")
    def _check_together(self) -> EncoderConfig:
        patterns = [split_pattern(template) for template in self.templates]
        has_memory = all("memory" in pattern.tail for pattern in patterns)
        if self.pooling.over == "memory" and not (has_memory and self.memory_tokens):
            raise ValueError(
                f"pooling.over='memory' with memory_tokens={self.memory_tokens} and template={self.template!r}; "
                "pooling over memory needs memory_tokens of 1 or more and {memory} at the end of the template"
            )
        if self.pooling.mode == "concat" and self.pooling.over != "memory":
            raise ValueError(f"pooling.mode=concat over {self.pooling.over!r}; it is for memory tokens: over: memory")
        if has_memory != bool(self.memory_tokens):
            raise ValueError(
                f"template={self.template!r} and memory_tokens={self.memory_tokens} do not go together; "
                "a template with {memory} needs memory_tokens of 1 or more, one without needs 0"
            )
        if self.memory_ratio is not None and not has_memory:
            raise ValueError(
                f"memory_ratio={self.memory_ratio:g} without memory tokens; it says how many of them a text gets: set "
                "memory_tokens to the most, and put {memory} at the end of the template"
            )
        if all(pattern.soft_prompt for pattern in patterns) != bool(self.soft_prompt_tokens):
            raise ValueError(
                f"template={self.template!r} and soft_prompt_tokens={self.soft_prompt_tokens} do not go together; "
                "a template with {soft_prompt} needs 1 or more, one without needs none"
            )
        if self.attention == "memory_causal" and not has_memory:
            raise ValueError(
                "attention='memory_causal' with memory_tokens=0; it orders memory tokens among themselves, "
                "so give memory_tokens and {memory}, or choose causal or bidirectional"
            )
        if self.pooling.over == "echo" and any(pattern.between is None for pattern in patterns):
            raise ValueError(f"pooling.over='echo' with template={self.template!r}; put {{echo}} after {{text}}")
        if self.demonstrations and (len(patterns) > 1 or "{instruction}" in patterns[0].after):
            raise ValueError(
                f"encoder.demonstrations with template={self.template!r}; demonstrations stand before the text, each "
                "with its instruction: give one template, with {instruction} before {text}"
            )
        if not any(pattern.has_instruction for pattern in patterns) and (self.prompts.query or self.prompts.document):
            raise ValueError(f"prompts are set, but template={self.template!r} has no {{instruction}} to put them in")
        return self
