"""Write and read rows as JSON Lines, and write BEIR folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows as JSON Lines, and return the file; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_beir(
    folder: Path,
    documents: Iterable[Mapping[str, Any]],
    queries: Iterable[Mapping[str, Any]],
    qrels: Iterable[tuple[str, str, int]],
    *,
    split: str = "test",
) -> Path:
    """Write a BEIR folder with one split, and return it; `qrels` are queries, documents and grades."""
    write_rows(folder / "corpus.jsonl", documents)
    write_rows(folder / "queries.jsonl", queries)
    lines = ("\t".join(map(str, judgement)) for judgement in qrels)
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder
