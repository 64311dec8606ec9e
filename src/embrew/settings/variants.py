"""How variants of a text are written, whose embeddings are averaged with the text's own (GenEOL)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from embrew.config.validation import Config
from embrew.text.pattern import split_pattern

Name = Annotated[str, Field(min_length=1)]


class Variants(Config):
    """GenEOL (arXiv 2410.14635): a generator rewrites each text, and the embedding is the mean over all versions.

    Attributes:
        prompts: patterns with `{text}`, one per way to rewrite; the first line after a prompt is a variant.
        per_prompt: variants per prompt.
        then: pattern of a second rewriting, of each variant; None: there is none.
        generator: base that writes them, `nano`, a folder or a Hub id; None: the encoder's own language model.
        max_new_tokens: longest variant.
        temperature: of sampling.
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
