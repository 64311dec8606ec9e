"""Data folders, and results of two models on them whose changes are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embrew.evaluation import Result, find_task
from embrew.report import Model, compare_models
from embrew.report.section import Subject
from tests.report.tasks import write_rows


def retrieval_folder(
    folder: Path, queries: Mapping[str, str], documents: Mapping[str, str], qrels: Sequence[str]
) -> Path:
    """Write a folder whose judgements are lines such as `q1 d2 1`."""
    write_rows(folder, [{"_id": name, "text": text} for name, text in queries.items()], "queries.jsonl")
    write_rows(folder, [{"_id": name, "text": text} for name, text in documents.items()], "corpus.jsonl")
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("".join(line.replace(" ", "\t") + "\n" for line in qrels))
    return folder


def result(task: str, kind: str, count: int, **examples: Any) -> Result:
    return Result(task, "test", kind, 0.5, {}, 1.0, {"queries": count}, examples)


def ranked(task: str, queries: Mapping[str, tuple[int | None, Sequence[str]]], kind: str = "retrieval") -> Result:
    """Return the result of a task with queries: rank of the first relevant document, and the nearest documents."""
    ranks, tops = zip(*queries.values(), strict=True)
    scores = [1 / rank if rank else 0.0 for rank in ranks]
    return result(
        task, kind, len(queries), score=scores, query=list(queries), rank=list(ranks), top=[list(t) for t in tops]
    )


def subject(models: Mapping[str, Sequence[Result]], *folders: Path, seeds: int = 1, **settings: Any) -> Subject:
    """Return what a report is about: one result per task and model, and the folders with their texts."""
    compared = compare_models([Model(name, [results] * seeds) for name, results in models.items()])
    tasks = [find_task(folder, split="test", **settings) for folder in folders]
    return Subject(compared, {(task.name, "test"): task for task in tasks})
