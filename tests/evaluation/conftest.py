import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew.model.context_vectors import initialize_demonstrator
from embrew.settings.encoder import Demonstrations
from tests.rows import write_beir, write_rows


class BagOfWords:
    """An encoder whose vectors can be worked out by hand: counts of words, hashed into buckets."""

    def __init__(self, dimensions: int = 512) -> None:
        self.dimensions = dimensions
        self.prompts = {"query": "q: ", "document": "d: "}
        self.calls: list[tuple[str, int, dict]] = []

    def encode(self, inputs: Sequence[str], *, show_progress_bar=False, convert_to_numpy=True, **options) -> np.ndarray:
        return self._vectors("text", inputs, options)

    def encode_query(self, inputs: Sequence[str], *, show_progress_bar=False, convert_to_numpy=True, **options):
        return self._vectors("query", inputs, options)

    def encode_document(self, inputs: Sequence[str], *, show_progress_bar=False, convert_to_numpy=True, **options):
        return self._vectors("document", inputs, options)

    def _vectors(self, side: str, inputs: Sequence[str], options: dict) -> np.ndarray:
        self.calls.append((side, len(inputs), options))
        vectors = np.zeros((len(inputs), self.dimensions), dtype=np.float32)
        for row, text in enumerate(inputs):
            for word in text.lower().split():
                vectors[row, zlib.crc32(word.encode()) % self.dimensions] += 1
        return vectors


@pytest.fixture
def bag_of_words() -> BagOfWords:
    return BagOfWords()


@pytest.fixture
def sts_folder(tmp_path) -> Path:
    """Three pairs whose bag-of-words cosines are 1, 1/2 and 0, in the order of their scores."""
    rows = [
        {"sentence1": "a cat", "sentence2": "a cat", "score": 5.0, "subset": "x"},
        {"sentence1": "a cat", "sentence2": "a dog", "score": 3.0, "subset": "x"},
        {"sentence1": "a cat", "sentence2": "blue sky", "score": 0.0, "subset": "y"},
    ]
    return write_rows(tmp_path / "STS" / "test.jsonl", rows).parent


@pytest.fixture
def retrieval_folder(tmp_path) -> Path:
    documents = {"d1": "cats sleep", "d2": "dogs bark loudly", "d3": "fish swim"}
    queries = {"q1": "cats", "q2": "dogs", "q3": "birds fish"}
    return write_beir(
        tmp_path / "pets",
        [{"_id": key, "title": "", "text": text} for key, text in documents.items()],
        [{"_id": key, "text": text} for key, text in queries.items()],
        [("q1", "d1", 1), ("q2", "d2", 1), ("q3", "d9", 1)],
        split="dev",
    )


@pytest.fixture
def reads_demonstrations(make_encoder) -> Any:
    encoder = make_encoder(
        memory_tokens=0, attention="causal", template="{instruction}{text}{eos}", demonstrations=Demonstrations()
    )
    initialize_demonstrator(encoder)
    return encoder
