"""Scores: tasks by models, differences from the first model, what is not compared, and settings that differ."""

from collections.abc import Iterator
from typing import Any

from embrew.comparison import Comparison, differing_settings
from embrew.report.section import Figure, Section
from embrew.report.subject import Subject


def section(subject: Subject) -> Section:
    """Return the section."""
    comparison = subject.comparison
    tested = [comparison.differences(model) for model in range(1, len(comparison.models))]
    rows: list[dict[str, Any]] = []
    for i, task in enumerate(comparison.tasks):
        rows.append({"task": task, "tests": [None, *(tests[i] for tests in tested)]})
    rows.sort(key=lambda row: min((test.test.difference for test in row["tests"] if test), default=0.0))
    settings = differing_settings(comparison.models)
    document = {
        "models": [model.name for model in comparison.models],
        "means": comparison.means(),
        "tasks": [_entry(row) for row in rows],
        "left_out": [one._asdict() for one in comparison.left_out],
        "settings": settings,
    }
    values = {
        "models": comparison.models,
        "means": comparison.means(),
        "rows": rows,
        "left_out": comparison.left_out,
        "settings": settings,
    }
    return Section("scores", "Scores", values, document, tuple(_figures(comparison)))


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    task = row["task"]
    return {
        "task": task.label,
        "metric": task.metric,
        "seeds": [[result.main_score for result in results] for results in task.results],
        "scores": task.scores,
        "differences": [test and {**vars(test.test), "corrected": test.corrected} for test in row["tests"]],
    }


def _figures(comparison: Comparison) -> Iterator[Figure]:
    for m, model in enumerate(comparison.models):
        yield Figure("scores", model.name, "mean score", comparison.means()[m])
        tests = comparison.differences(m) if m else (None,) * len(comparison.tasks)
        for task, test in zip(comparison.tasks, tests, strict=True):
            yield Figure("scores", model.name, "score", task.scores[m], task.label)
            if test is not None:
                found = test.test
                yield Figure("scores", model.name, "difference", found.difference, task.label, found.low, found.high)
                yield Figure("scores", model.name, "corrected p-value", test.corrected, task.label)
