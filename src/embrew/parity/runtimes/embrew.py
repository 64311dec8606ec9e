"""`embrew serve`, asked by OpenAI's API or that of Text Embeddings Inference, with prompts and limits of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embrew.parity.reference import Prompt
from embrew.parity.runtimes.openai import OpenAI
from embrew.parity.runtimes.server import Server
from embrew.parity.runtimes.tei import TextEmbeddingsInference

SIDES = {"encode_query": "query", "encode_document": "document"}


def is_embrew(server: Server) -> bool:
    """Return whether a server says in `/info` that it is `embrew serve`."""
    try:
        about = server.get("/info")
    except ValueError:
        return False
    return isinstance(about, dict) and about.get("server") == "embrew"


class EmbrewServer:
    """A server that is asked as the methods of its encoder are called.

    Args:
        api: by which it is asked.
    """

    by_words, by_name = False, True
    reads: tuple[str, ...] = ()

    def __init__(self, api: OpenAI | TextEmbeddingsInference) -> None:
        self.api, self.name = api, api.name.replace("(", "(embrew, ")

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of texts without a prompt."""
        return self.api.vectors(texts, {"prompt": ""})

    def embed_named(self, texts: Sequence[str], prompt: Prompt) -> np.ndarray:
        """Return vectors as the method of a prompt gives them: with the limit of its side."""
        asked: dict[str, Any] = {} if prompt.is_default else {"prompt_name": prompt.name}
        if prompt.method in SIDES:
            asked = {"input_type": SIDES[prompt.method]}
        return self.api.vectors(texts, asked)

    def token_ids(self, text: str) -> list[int] | None:
        """Learned tokens have other ids than in an export, so that ids are not compared."""
        return None
