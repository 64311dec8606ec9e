"""The methods of an encoder that evaluation and search call; `embrew.Encoder` and `SentenceTransformer` have them."""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class TextEncoder(Protocol):
    """Sentence-Transformers' three methods that embed texts, and its prompts."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prompts (prefixes of the input) by name; `query` and `document` are applied by their methods."""

    def encode(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of texts, `(texts, dimensions)`."""

    def encode_query(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of queries."""

    def encode_document(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of documents."""


def encode_options(
    encoder: TextEncoder, *, batch_tokens: int | None = None, show_progress_bar: bool = False
) -> dict[str, Any]:
    """Return keywords for the encode methods; `batch_tokens` only if the encoder has it."""
    options: dict[str, Any] = {"show_progress_bar": show_progress_bar, "convert_to_numpy": True}
    if batch_tokens is not None and "batch_tokens" in inspect.signature(encoder.encode).parameters:
        options["batch_tokens"] = batch_tokens
    return options


def fixed(encoder: TextEncoder) -> AbstractContextManager[Any]:
    """Return the encoder's `fixed()`, within which prompts are computed once for all calls; else an empty context."""
    made: Any = getattr(encoder, "fixed", nullcontext)
    return made()


def resolved_prompts(encoder: TextEncoder) -> dict[str, str]:
    """Return the prompts of plain texts, queries and documents, by Sentence-Transformers' rules."""
    prompts = dict(encoder.prompts or {})
    default_name = getattr(encoder, "default_prompt_name", None)
    default = prompts.get(default_name, "") if default_name else ""
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), default)
    return {"text": default, "query": prompts.get("query", default), "document": document}
