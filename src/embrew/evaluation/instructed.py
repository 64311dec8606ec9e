"""Wrap an encoder with a task's instruction or context."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embrew.text_encoder.interface import TextEncoder


@dataclass(frozen=True)
class Instructed:
    """`encoder` with `instruction` as the prompt of texts and queries; documents keep their own prompt.

    MTEB evaluates instruction-tuned encoders this way: both sides of symmetric tasks are instructed, and the queries of
    asymmetric ones. `context` names a context of the encoder, which is the prefix instead.
    """

    encoder: TextEncoder
    instruction: str = ""
    context: str | None = None

    @property
    def prompts(self) -> Mapping[str, str]:
        """The encoder's own prompts."""
        return self.encoder.prompts

    @property
    def _prompt(self) -> dict[str, str]:
        return {"prompt": self.instruction} if self.context is None else {"prompt_name": self.context}

    def encode(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of texts with the prefix."""
        return self.encoder.encode(inputs, *args, **{**self._prompt, **kwargs})

    def encode_query(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of queries with the prefix."""
        return self.encoder.encode_query(inputs, *args, **{**self._prompt, **kwargs})

    def encode_document(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of documents."""
        return self.encoder.encode_document(inputs, *args, **kwargs)


def instructed(encoder: TextEncoder, settings: Mapping[str, Any]) -> TextEncoder:
    """Return the encoder with the prefix that a task's settings `instruction` and `context` name.

    Raises:
        ValueError: both are set.
    """
    instruction, context = settings.get("instruction"), settings.get("context")
    if instruction is None and context is None:
        return encoder
    if instruction is not None and context is not None:
        raise ValueError(f"context={context!r} has its own instruction; leave out instruction={instruction!r}")
    return Instructed(encoder, instruction or "", context)


def inner(encoder: TextEncoder) -> TextEncoder:
    """Return the encoder without a task's instruction or context."""
    return encoder.encoder if isinstance(encoder, Instructed) else encoder
