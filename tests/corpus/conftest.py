from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embrew.corpus.job import MANIFEST
from embrew.files.checksums import digest_of
from tests.conftest import SENTENCES
from tests.corpus.stores import FakeStore, in_memory

TEXTS = [f"{sentence * (1 + i % 4)} {i}" for i in range(12) for sentence in SENTENCES]


@pytest.fixture
def corpus(tmp_path) -> Path:
    """60 texts of very different lengths."""
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"_id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS)))
    return path


@pytest.fixture
def store() -> Iterator[type[FakeStore]]:
    """An empty store in memory."""
    with in_memory() as implementation:
        yield implementation


@pytest.fixture
def hashes() -> Callable[[Path], dict[str, str]]:
    """sha256 of every shard of a folder."""

    def of(folder: Path) -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("part-*"))}

    return of


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest, with a sha256 of its own."""
    values = json.loads((folder / MANIFEST).read_text())
    del values["sha256"]
    change(values)
    (folder / MANIFEST).write_text(json.dumps({**values, "sha256": digest_of(values)}))
