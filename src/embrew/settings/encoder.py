"""All settings of an encoder, checked once: for recipes, constructors and saved folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from embrew.config.validation import explain
from embrew.settings.demonstrations import Demonstrations
from embrew.settings.pooling import Pooling
from embrew.text.numbers import SIDES, lengths_of
from embrew.text.pattern import Pattern, WordsAfter, check_learned, check_words_after, split_pattern
from embrew.text.texts import Preparation

AttentionMode = Literal["causal", "bidirectional", "memory_causal"]
Length = Annotated[int, Field(gt=0)]
ALWAYS_WRITTEN = ("template", "words_after", "attention", "pooling", "prompts", "max_length", "normalize")
"""Settings that every folder's JSON holds; the others are written only where they are not at their default."""


class EncoderSettings(BaseModel):
    """How an encoder reads texts, and what it makes of them.

    A new setting is one field here; recipes, `Encoder.from_pretrained`, `embrew.json`, verification, and the comparison
    of an encoder with a recipe have it then. The code that uses it reads `encoder.settings`.

    Attributes:
        template: pattern of a row (`text.pattern`); several: the embedding is the mean over them.
        preparation: what is done to a text before it is tokenised (`text.texts`).
        memory_ratio: tokens of a text for each memory token; None: every text gets all of them.
        words_after: how words after the text are tokenised; None: as the template requires.
        attention: `causal`, `bidirectional` or `memory_causal` (`model.attention`).
        pooling: how token states become one vector.
        prompts: what fills `{instruction}`, by name; `query` and `document` are always there.
        default_prompt_name: the prompt that is used where none is named; None: none.
        max_length: limits in tokens, everything included, of queries and of documents.
        normalize: vectors have unit length.
        demonstrations: how demonstrations in a prompt are read; None: the encoder reads none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    template: str | Annotated[list[str], Field(min_length=1)] = "{instruction}{text}"
    preparation: Preparation = "none"
    memory_ratio: Annotated[int | float, Field(gt=0)] | None = None
    words_after: WordsAfter | None = None
    attention: AttentionMode = "causal"
    pooling: Pooling = Pooling("last")
    prompts: dict[str, str] = dict.fromkeys(SIDES, "")
    default_prompt_name: str | None = None
    max_length: dict[str, Length] = dict.fromkeys(SIDES, 512)
    normalize: bool = True
    demonstrations: Demonstrations | None = None

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Return checked settings from what Python callers give.

        That is a mapping or a mode's name for `pooling`, one number for `max_length`, a tuple for `template`.

        Raises:
            TypeError: a keyword that is no setting, or a length that is no whole number.
            ValueError: a value that is not allowed, or settings that do not go together.
        """
        unknown = [name for name in given if name not in cls.model_fields]
        if unknown:
            raise TypeError(f"{unknown[0]} is not a setting of an encoder; choose from {', '.join(cls.model_fields)}")
        if isinstance(given.get("pooling"), str):
            given["pooling"] = {"mode": given["pooling"]}
        if isinstance(template := given.get("template"), list | tuple):
            given["template"] = template[0] if len(template) == 1 else list(template)  # hashes have one as a string
        if "max_length" in given:
            given["max_length"] = lengths_of(given["max_length"])
        if isinstance(given.get("prompts", {}), Mapping | None):
            given["prompts"] = {**dict.fromkeys(SIDES, ""), **(given.get("prompts") or {})}
        try:
            made = cls.model_validate(given)
            return made.model_copy(update={"words_after": check_words_after(made.words_after, made.templates)})
        except ValidationError as error:
            raise ValueError(explain(error, cls, given)) from None

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Return the settings in a folder's JSON; its other keys are left out."""
        return cls.of(**{name: saved[name] for name in cls.model_fields if name in saved})

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON; `from_dict` reads them back."""
        defaults = {name: field.default for name, field in EncoderSettings.model_fields.items()}
        values = {name: getattr(self, name) for name in ALWAYS_WRITTEN}
        values |= {name: value for name, value in self if name not in values and value != defaults[name]}
        return {name: plain(value) for name, value in values.items()}

    def replace(self, **given: Any) -> Self:
        """Return checked settings with some of them changed."""
        return type(self).of(**{**dict(self), **given})

    def differences(self, other: EncoderSettings) -> dict[str, tuple[Any, Any]]:
        """Return each setting in which `other` differs, with both values."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in EncoderSettings.model_fields}
        return {name: (plain(ours), plain(theirs)) for name, (ours, theirs) in pairs.items() if ours != theirs}

    @property
    def templates(self) -> list[str]:
        """`template` as a list, whether one is given or several."""
        return [self.template] if isinstance(self.template, str) else self.template

    @property
    def template_options(self) -> dict[str, Any]:
        """Keyword arguments of `Template`."""
        return {name: getattr(self, name) for name in ("preparation", "memory_ratio", "words_after")}

    @property
    def patterns(self) -> list[Pattern]:
        """The templates in their parts."""
        return [split_pattern(template) for template in self.templates]

    def check_learned_tokens(self, memory_tokens: int, soft_prompt_tokens: int) -> None:
        """Raise unless these settings go with that many memory tokens, and tokens of a soft prompt."""
        for template in self.templates:
            check_learned(template, memory_tokens, soft_prompt_tokens)
        self.pooling.check_slots(memory_tokens)

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str | list[str]) -> str | list[str]:
        for pattern in [template] if isinstance(template, str) else template:
            split_pattern(pattern)
        return template

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        has_memory = all("memory" in pattern.tail for pattern in self.patterns)
        has_echo = all(pattern.between is not None for pattern in self.patterns)
        if self.pooling.over == "memory" and not has_memory:
            raise ValueError(
                f"pooling.over='memory' with template={self.template!r}; pooling over memory needs memory_tokens of 1 "
                "or more and {memory} at the end of the template"
            )
        if self.pooling.over == "echo" and not has_echo:
            raise ValueError(f"pooling.over='echo' with template={self.template!r}; put {{echo}} after {{text}}")
        if self.memory_ratio is not None and not has_memory:
            raise ValueError(
                f"memory_ratio={self.memory_ratio:g} without memory tokens; it says how many of them a text gets: set "
                "memory_tokens to the most, and put {memory} at the end of the template"
            )
        if self.memory_ratio is not None and any(pattern.between is not None for pattern in self.patterns):
            raise ValueError(
                f"memory_ratio={self.memory_ratio:g} with template={self.template!r}; it goes without {{echo}}"
            )
        if self.demonstrations and (len(self.patterns) > 1 or "{instruction}" in self.patterns[0].after):
            raise ValueError(
                f"demonstrations with template={self.template!r}; demonstrations come before the text, each with its "
                "instruction: give one template, with {instruction} before {text}"
            )
        if self.default_prompt_name is not None and self.default_prompt_name not in dict(self.prompts):
            names = ", ".join(sorted(dict(self.prompts)))
            raise ValueError(f"default_prompt_name={self.default_prompt_name!r}; choose from {names}")
        return self


def plain(value: Any) -> Any:
    """Return a setting's value as JSON has it, copied."""
    if isinstance(value, Pooling | Demonstrations):
        return value.as_dict()
    return value.copy() if isinstance(value, dict | list) else value
