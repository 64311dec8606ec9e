"""An encoder with a task's instruction put before its texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embrew.protocol import TextEncoder


@dataclass(frozen=True)
class Instructed:
    """`encoder`, with `instruction` as the prompt of texts and queries; documents keep their own prompt.

    This is how instruction-tuned encoders are judged on MTEB: symmetric tasks instruct both sides, asymmetric ones the
    queries only.
    """

    encoder: TextEncoder
    instruction: str

    @property
    def prompts(self) -> Mapping[str, str]:
        """The encoder's own prompts."""
        return self.encoder.prompts

    def encode(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Vectors of texts, instructed."""
        return self.encoder.encode(inputs, *args, **{"prompt": self.instruction, **kwargs})

    def encode_query(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Vectors of queries, instructed."""
        return self.encoder.encode_query(inputs, *args, **{"prompt": self.instruction, **kwargs})

    def encode_document(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Vectors of documents."""
        return self.encoder.encode_document(inputs, *args, **kwargs)
