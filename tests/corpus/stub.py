"""A text encoder without a model, for what is not about vectors: importable, so that other processes have it too."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np


class Stub:
    """Vectors that are a hash of the text: the same in every process."""

    def __init__(self, dimensions: int = 16, *, name: str = "stub", prompts: dict[str, str] | None = None, wait=0.0):
        self.dimensions = dimensions
        self.name = name
        self.prompts = {"query": "", "document": "", **(prompts or {})}
        self.wait = wait
        self.asked: list[dict[str, Any]] = []

    def weights_hash(self) -> str:
        return self.name

    def encode(self, inputs: Sequence[str], truncate_dim: int | None = None, **options: Any) -> np.ndarray:
        time.sleep(self.wait)
        self.asked.append({**options, "rows": len(inputs)})
        rows = [hashlib.shake_128(text.encode()).digest(2 * self.dimensions) for text in inputs]
        numbers = np.frombuffer(b"".join(rows), dtype="<u2").reshape(len(inputs), self.dimensions)
        vectors = numbers.astype(np.float32) / 65535 - 0.5
        return vectors[:, :truncate_dim]

    def encode_query(self, inputs: Sequence[str], **options: Any) -> np.ndarray:
        return self.encode([self.prompts["query"] + text for text in inputs], **options)

    def encode_document(self, inputs: Sequence[str], **options: Any) -> np.ndarray:
        return self.encode([self.prompts["document"] + text for text in inputs], **options)


def open_stub() -> Stub:
    return Stub()


if __name__ == "__main__":  # one run, for the tests that kill it
    import sys

    from embrew.corpus import encode_corpus

    corpus, output, wait = sys.argv[1:]
    encode_corpus(Stub(wait=float(wait)), corpus, output, shard_rows=10, precision="int8", on_bad_rows="skip")
