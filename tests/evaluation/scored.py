"""Folders of scored pairs with a train and a test split, for tests of what may be chosen on what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embrew.settings.encoder import Demonstration
from tests.conftest import SENTENCES
from tests.rows import write_rows

PAIRS = (Demonstration("a question", "an answer"), Demonstration("another question", "another answer"))


def write(path: Path, *rows: dict[str, Any]) -> Path:
    return write_rows(path, rows)


def scored(i: int, split: str = "train") -> dict[str, Any]:
    return {"sentence1": f"{split} {i}", "sentence2": SENTENCES[i % 5], "score": float(i % 5)}


def sts_folder(folder: Path) -> Path:
    """A train and a test split; some training rows hold a text of the test split."""
    write(folder / "train.jsonl", *(scored(i) for i in range(30)))
    tested = [{"sentence1": f"test {i}", "sentence2": f"other {i}", "score": float(i % 5)} for i in range(8)]
    write(folder / "test.jsonl", *tested, *({**scored(i), "sentence2": "x y"} for i in range(4)))
    return folder
