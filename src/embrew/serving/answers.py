"""Bodies of answers: those of OpenAI and of Text Embeddings Inference."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Embedding(BaseModel):
    """One vector."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that the model read, with those of the template and of prompts and without padding."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """OpenAI's list of embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class Model(BaseModel):
    """A model by name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "embrew"


class Models(BaseModel):
    """The served model."""

    object: Literal["list"] = "list"
    data: list[Model]


class Token(BaseModel):
    """A token, and the characters of the text that it covers, where it covers any."""

    id: int
    text: str
    special: bool
    start: int | None = None
    stop: int | None = None
