"""Folders that embrew or Sentence-Transformers open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embrew.parity.reference import Prompt
from embrew.parity.runtimes.runtime import Refused, checked

QUIET: dict[str, Any] = {"show_progress_bar": False}


class SentenceTransformersFolder:
    """A folder that plain Sentence-Transformers opens.

    Args:
        name: the folder.
        model: the opened model.
    """

    by_words, by_name = True, True
    reads: tuple[str, ...] = ("sentence-transformers", "vllm", "tei")

    def __init__(self, name: str, model: Any) -> None:
        self.name, self.model = f"{name} (Sentence-Transformers)", model

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of texts in one batch, without the model's default prompt."""
        vectors = self.model.encode(list(texts), prompt="", batch_size=len(texts), **QUIET)
        return checked(vectors, texts, self.name)

    def embed_named(self, texts: Sequence[str], prompt: Prompt) -> np.ndarray:
        """Return vectors by the method that applies a prompt."""
        return checked(_by_method(self.model, texts, prompt), texts, self.name)

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by the model's tokenizer."""
        limit = self.model.max_seq_length
        found = self.model.tokenizer(text, truncation=limit is not None, max_length=limit)
        return [int(i) for i in found["input_ids"]]


class EncoderFolder:
    """A folder of an encoder. Its template puts prompts where they belong, so that they are given by name only.

    Args:
        name: the folder.
        encoder: the opened encoder.
    """

    by_words, by_name = False, True
    reads: tuple[str, ...] = ()

    def __init__(self, name: str, encoder: Any) -> None:
        self.name, self.encoder = f"{name} (embrew)", encoder

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of texts without a prompt, in one batch."""
        return checked(self.encoder.encode(list(texts), prompt="", batch_size=len(texts), **QUIET), texts, self.name)

    def embed_named(self, texts: Sequence[str], prompt: Prompt) -> np.ndarray:
        """Return vectors by the method that applies a prompt."""
        return checked(_by_method(self.encoder, texts, prompt), texts, self.name)

    def token_ids(self, text: str) -> list[int] | None:
        """Learned tokens have other ids than in an export, so that ids are not compared."""
        return None


def _by_method(model: Any, texts: Sequence[str], prompt: Prompt) -> Any:
    """Return what the method of a prompt gives.

    Raises:
        Refused: the model has no prompt of this name.
    """
    named = {} if prompt.method != "encode" or prompt.is_default else {"prompt_name": prompt.name}
    try:
        return getattr(model, prompt.method)(list(texts), batch_size=len(texts), **named, **QUIET)
    except ValueError as error:
        if not named:
            raise
        raise Refused(str(error)) from error
