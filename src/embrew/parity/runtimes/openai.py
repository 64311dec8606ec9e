"""Servers with OpenAI's `/v1/embeddings`: vLLM, llama-server, Text Embeddings Inference, embrew and others."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embrew.export.runtimes import RUNTIMES
from embrew.parity.reference import Prompt
from embrew.parity.runtimes.runtime import checked
from embrew.parity.runtimes.server import Server


class OpenAI:
    """`POST URL/embeddings`, where `URL` ends with `/v1`.

    Args:
        server: address up to and with `/v1`.
        model: name of the model; None: the first that `/models` lists.
    """

    by_words, by_name = True, False
    reads: tuple[str, ...] = tuple(RUNTIMES)

    def __init__(self, server: Server, model: str | None) -> None:
        self.server, self.name = server, f"{server.shown} (OpenAI's API)"
        self.model = model or self._first_model()
        self.root = Server(server.base.removesuffix("/v1"), timeout=server.timeout)  # `/tokenize` is there
        self.tokenizes = True

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of texts."""
        return self.vectors(texts, {})

    def vectors(self, texts: Sequence[str], asked: Mapping[str, Any]) -> np.ndarray:
        """Return vectors by the `index` of each, of a request with further fields."""
        body = {"model": self.model, "input": list(texts), "encoding_format": "float", **asked}
        answer = self.server.post("/embeddings", body)
        source = f"{self.server.shown}/embeddings"
        try:
            items = answer["data"]
            order = [int(item.get("index", place)) for place, item in enumerate(items)]
            vectors = {number: _numbers(item["embedding"]) for number, item in zip(order, items, strict=True)}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self.server.foreign(answer, "/embeddings", "OpenAI's API") from None
        if sorted(order) != list(range(len(texts))):
            raise ValueError(
                f"{source} gives {len(items)} vectors for {len(texts)} texts, with the numbers {order[:9]}"
            )
        return checked([vectors[i] for i in range(len(texts))], texts, source)

    def embed_named(self, texts: Sequence[str], prompt: Prompt) -> np.ndarray:
        """The API has no prompts."""
        raise NotImplementedError

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by `/tokenize` of vLLM (`prompt`) or llama-server (`content`); None: there is neither."""
        bodies: list[dict[str, Any]] = [
            {"model": self.model, "prompt": text, "add_special_tokens": True},
            {"content": text, "add_special": True},
        ]
        for body in bodies if self.tokenizes else []:
            try:
                found = self.root.post("/tokenize", body)["tokens"]
            except (ValueError, KeyError, TypeError):
                continue
            if found and all(isinstance(token, int) for token in found):
                return list(found)
        self.tokenizes = False
        return None

    def _first_model(self) -> str:
        try:
            return str(self.server.get("/models")["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"{self.server.shown}/models lists no model; name it with --model") from None


def _numbers(embedding: object) -> object:
    """Return a vector, which some servers send as float32 in base64 whatever they were asked for."""
    return np.frombuffer(b64decode(embedding, validate=True), dtype="<f4") if isinstance(embedding, str) else embedding
