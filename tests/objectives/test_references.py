"""Reference scores: of the rows and the encoder they are read for, and computed again from a damaged file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from embrew.methods import Alignment
from embrew.methods import autoregembed as alignment
from embrew.methods.autoregembed import stored_scores

TEXTS = list("abcdefghij")
Computed = list[list[str]]


@pytest.fixture
def computed(monkeypatch) -> Computed:
    """The queries of each file that is computed; scores differ between them, one to three a row."""
    queries: Computed = []

    def references(self: Alignment, rows: Any, encoder: Any) -> list[list[float]]:
        queries.append([row["query"] for row in rows])
        return [scores_of(row["query"]) for row in rows]

    monkeypatch.setattr(Alignment, "_references", references)
    monkeypatch.setattr(alignment, "SHARD_SIZE", 4)
    return queries


def scores_of(text: str) -> list[float]:
    return [-float(ord(text[0])), *[0.5 + i for i in range(ord(text[0]) % 3)]]


def run(texts: list[str], encoder: Any, folder: Path | None) -> None:
    rows = [{"query": text, "positive": "p", "negatives": ["n"]} for text in texts]
    scored = Alignment().precompute(Dataset.from_list(rows), encoder, folder)
    assert list(scored["reference"]) == [scores_of(text) for text in texts]


def test_files_are_of_their_rows_and_encoder(make_encoder, computed, tmp_path):
    encoder, parts = make_encoder(memory_tokens=2), [TEXTS[:4], TEXTS[4:8], TEXTS[8:]]
    run(TEXTS, encoder, None)
    run(TEXTS, encoder, tmp_path)
    assert computed == [*parts, *parts]
    run(TEXTS, encoder, tmp_path)
    run([*TEXTS[:4], "x", *TEXTS[5:]], encoder, tmp_path)
    assert computed[6:] == [["x", *TEXTS[5:8]]]
    run(TEXTS, make_encoder(memory_tokens=3), tmp_path)
    assert computed[7:] == parts


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: b"", lambda data: data[:20] + b"x" + data[21:]]
)
def test_a_damaged_file_is_computed_again(damage, tmp_path, caplog):
    scores, calls = [[-1.0, 0.25], [], [3.5]], []
    path = tmp_path / "file.safetensors"

    def compute() -> list[list[float]]:
        calls.append(1)
        return scores

    assert [stored_scores(path, compute) for _ in range(2)] == [scores] * 2 and len(calls) == 1
    path.write_bytes(damage(path.read_bytes()))
    assert stored_scores(path, compute) == scores and len(calls) == 2
    assert "file.safetensors is damaged" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == ["file.safetensors"]  # and nothing temporary beside it
