"""What evaluation and search need of an encoder: `embrew.Encoder` and `SentenceTransformer` both have it."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class TextEncoder(Protocol):
    """Sentence-Transformers' three ways to turn texts into vectors, and its prompts."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts put before the input, by name; `query` and `document` are used by themselves."""

    def encode(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Vectors of texts, `(texts, dimensions)`."""

    def encode_query(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Vectors of texts that ask."""

    def encode_document(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Vectors of texts that are searched."""


def encode_options(
    encoder: TextEncoder, *, batch_tokens: int | None = None, show_progress_bar: bool = False
) -> dict[str, Any]:
    """Keywords for the encode methods; `batch_tokens` only where the encoder knows it."""
    options: dict[str, Any] = {"show_progress_bar": show_progress_bar, "convert_to_numpy": True}
    if batch_tokens is not None and "batch_tokens" in inspect.signature(encoder.encode).parameters:
        options["batch_tokens"] = batch_tokens
    return options


def resolved_prompts(encoder: TextEncoder) -> dict[str, str]:
    """The text put before plain texts, queries and documents, looked up as Sentence-Transformers does."""
    prompts = dict(encoder.prompts or {})
    default_name = getattr(encoder, "default_prompt_name", None)
    default = prompts.get(default_name, "") if default_name else ""
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), default)
    return {"text": default, "query": prompts.get("query", default), "document": document}
