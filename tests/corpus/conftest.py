from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embrew.corpus.layout import MANIFEST
from tests.conftest import SENTENCES

TEXTS = [f"{sentence * (1 + i % 4)} {i}" for i in range(12) for sentence in SENTENCES]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """60 texts of very different lengths."""
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"_id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS)))
    return path


@pytest.fixture
def hashes() -> Callable[[Path], dict[str, str]]:
    """sha256 of every shard of a folder."""

    def of(folder: Path) -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("part-*"))}

    return of


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest as if an earlier version had written it, without a sha256 of its own."""
    values = json.loads((folder / MANIFEST).read_text())
    del values["sha256"]
    change(values)
    (folder / MANIFEST).write_text(json.dumps(values))
