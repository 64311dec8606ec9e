"""Small tasks on disk, with results of models on them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embrew.evaluation.find import find_task
from embrew.evaluation.results import Result
from embrew.evaluation.task import Task
from embrew.report import Model, compare_models
from embrew.report.section import Subject

WORDS = [f"word{i}" for i in range(40)]


def write_rows(folder: Path, rows: Sequence[Mapping[str, Any]], file: str = "test.jsonl") -> Path:
    """Write rows as JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def retrieval(folder: Path, *, documents: int = 30, queries: int = 12, seed: int = 0) -> Task:
    """Return a task whose query i is a part of document i, and whose documents have i + 5 words."""
    chance = random.Random(seed)
    texts = [" ".join(chance.choices(WORDS, k=i + 5)) for i in range(documents)]
    write_rows(folder, [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)], "corpus.jsonl")
    query_rows = [{"_id": f"q{i}", "text": " ".join(texts[i].split()[:4])} for i in range(queries)]
    write_rows(folder, query_rows, "queries.jsonl")
    (folder / "qrels").mkdir()
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(queries))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return find_task(folder)


def subject_of(tasks: Mapping[str, Task], examples: Mapping[str, Mapping[str, Mapping[str, list[Any]]]]) -> Subject:
    """Return a subject of models with given examples by task name: `{model: {task: examples}}`."""
    models = []
    for model, by_task in examples.items():
        results = []
        for name, columns in by_task.items():
            size = len(next(iter(columns.values())))
            results.append(Result(name, "test", tasks[name].kind, 0.5, {}, 1.0, {"pairs": size}, dict(columns)))
        models.append(Model(model, [results]))
    return Subject(compare_models(models), data={(name, "test"): task for name, task in tasks.items()})
