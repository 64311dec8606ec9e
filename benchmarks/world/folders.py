"""Write rows and retrieval folders as embrew reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_retrieval(
    folder: Path,
    corpus: Mapping[str, str],
    queries: Mapping[str, str],
    relevant: Mapping[str, Mapping[str, Iterable[str]]],
) -> None:
    """Write a folder in BEIR's layout.

    Args:
        folder: where.
        corpus: documents by id.
        queries: texts by id.
        relevant: ids of relevant documents, by split and query.
    """
    write_rows(folder / "corpus.jsonl", ({"_id": name, "title": "", "text": text} for name, text in corpus.items()))
    write_rows(folder / "queries.jsonl", ({"_id": name, "text": text} for name, text in queries.items()))
    (folder / "qrels").mkdir(exist_ok=True)
    for split, judged in relevant.items():
        lines = ["query-id\tcorpus-id\tscore"]
        lines += [f"{query}\t{name}\t1" for query, names in judged.items() for name in names]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
