"""Subjects of reports, made of random scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from embrew.evaluation.results import Result
from embrew.report import Model, compare_models
from embrew.report.section import Subject

HOSTILE_MODELS = (
    "<img src=x onerror=\"document.title='run'\">",
    "\"'</script><script>document.title='run'</script>{{ 7 * 7 }}",
    "\u202eשלום & <b>bold</b>",
    "long" * 60,
)
HOSTILE_TASKS = ("</table><img src=x onerror=\"document.title='run'\">", "{% raw %}{{ names }}", "T" * 200, "سؤال")


def result(task: str, scores: Sequence[float], documents: int = 200) -> Result:
    """Return the result of a retrieval task with one score per query."""
    counts = {"queries": len(scores), "documents": documents}
    return Result(task, "test", "retrieval", float(np.mean(scores)), {}, 1.0, counts, {"score": list(scores)})


def subject(
    models: Sequence[str], tasks: Sequence[str], *, seeds: int = 1, queries: int = 40, documents: int = 200
) -> Subject:
    """Return models of which each is about 0.03 better than the one before, but 0.1 worse on the last task."""
    rng = np.random.default_rng(0)
    base = {task: rng.uniform(0.2, 0.6, size=queries) for task in tasks}
    compared = []
    for i, name in enumerate(models):
        run = {
            "prompts": {"query": f"{name}: "},
            "model": {"pooling": {"mode": "mean" if i else "last"}},
            "model_hash": f"{i:064}",
        }
        shift = {task: i * (-0.1 if task == tasks[-1] and len(tasks) > 1 else 0.03) for task in tasks}
        compared.append(
            Model(
                name,
                [
                    [
                        replace(
                            result(
                                task,
                                np.clip(base[task] + shift[task] + rng.normal(0, 0.05, queries), 0, 1).tolist(),
                                documents,
                            ),
                            run=run,
                        )
                        for task in tasks
                    ]
                    for _ in range(seeds)
                ],
            )
        )
    return Subject(compare_models(compared), command="embrew compare A B")
