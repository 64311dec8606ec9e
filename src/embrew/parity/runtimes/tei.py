"""Text Embeddings Inference: `POST /embed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embrew.parity.reference import Prompt
from embrew.parity.runtimes.runtime import Refused, checked
from embrew.parity.runtimes.server import Server


class TextEmbeddingsInference:
    """A server of Text Embeddings Inference, or one that answers as it does.

    Args:
        server: its address without `/embed`.
    """

    by_words, by_name = True, True
    reads: tuple[str, ...] = ("sentence-transformers", "vllm", "tei", "onnx")

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, f"{server.shown} (Text Embeddings Inference)"
        self.tokenizes = True

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of texts; a prompt that the server was started with is applied by it."""
        return self.vectors(texts, {})

    def embed_named(self, texts: Sequence[str], prompt: Prompt) -> np.ndarray:
        """Return vectors of texts with `prompt_name`."""
        if prompt.name is None:
            raise Refused("the text has no prompt")
        return self.vectors(texts, {"prompt_name": prompt.name})

    def vectors(self, texts: Sequence[str], asked: Mapping[str, Any]) -> np.ndarray:
        """Return vectors of a request with further fields."""
        answer = self.server.post("/embed", {"inputs": list(texts), **asked})
        if not isinstance(answer, list):
            raise self.server.foreign(answer, "/embed", "Text Embeddings Inference")
        return checked(answer, texts, f"{self.server.shown}/embed")

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by `/tokenize`."""
        try:
            if self.tokenizes:
                found = self.server.post("/tokenize", {"inputs": [text], "add_special_tokens": True})
                return [int(token["id"]) for token in found[0]]
        except (ValueError, KeyError, IndexError, TypeError):
            self.tokenizes = False
        return None
