"""Ollama: `POST /api/embed`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embrew.parity.reference import Prompt
from embrew.parity.runtimes.runtime import checked
from embrew.parity.runtimes.server import Server


class Ollama:
    """A server of Ollama.

    Args:
        server: its address without `/api/embed`.
        model: name of the model; None: the only one that it has.
    """

    by_words, by_name = True, False
    reads: tuple[str, ...] = ("llama.cpp",)

    def __init__(self, server: Server, model: str | None) -> None:
        self.server, self.name = server, f"{server.shown} (Ollama)"
        self.model = model or self._only_model()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of texts."""
        answer = self.server.post("/api/embed", {"model": self.model, "input": list(texts)})
        source = f"{self.server.shown}/api/embed"
        if not isinstance(answer, dict) or "embeddings" not in answer:
            raise self.server.foreign(answer, "/api/embed", "Ollama")
        return checked(answer["embeddings"], texts, source)

    def embed_named(self, texts: Sequence[str], prompt: Prompt) -> np.ndarray:
        """The API has no prompts."""
        raise NotImplementedError

    def token_ids(self, text: str) -> list[int] | None:
        """The API does not tell them."""
        return None

    def _only_model(self) -> str:
        try:
            names = [str(model["name"]) for model in self.server.get("/api/tags")["models"]]
        except (KeyError, TypeError):
            names = []
        if len(names) != 1:
            raise ValueError(f"{self.server.shown} has {', '.join(names) or 'no models'}; name one with --model")
        return names[0]
