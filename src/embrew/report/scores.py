"""Scores: tasks by models, differences from the first model, what is not compared, and settings that differ."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

from embrew.evaluation.results import metric_of, size_of
from embrew.evaluation.uncertainty import LEVEL
from embrew.inspection import gap_closed
from embrew.report.comparison import Comparison, DifferingSettings, TaskScores, Tested, differing_settings
from embrew.report.section import Section, Subject, Values


def section(subject: Subject) -> Section:
    """Return the section."""
    comparison, names = subject.comparison, subject.names
    tested = [comparison.differences(model) for model in range(1, len(names))]
    rows = [_row(task, [None, *(each[i] for each in tested)]) for i, task in enumerate(comparison.tasks)]
    rows.sort(key=lambda row: (not row["is_regression"], min((c["difference"] for c in row["cells"][1:]), default=0)))
    regressions = [row for row in rows if row["is_regression"]]
    settings = differing_settings(comparison.models)
    document = {
        "models": names,
        "means": comparison.means(),
        "tasks": [row["entry"] for row in rows],
        "left_out": [skipped._asdict() for skipped in comparison.left_out],
        "settings": settings,
        "gaps": gaps_of(subject),
        "overlaps": subject.overlaps,
    }
    values = {
        "groups": {
            "Means": mean_rows(comparison),
            "Significantly worse than the base for at least one model": regressions,
            "Other tasks" if regressions else "Tasks": [row for row in rows if not row["is_regression"]],
        },
        "differences": chart_rows(names, rows) if len(rows) > 1 else [],
        "shown_settings": settings_as_text(settings),
        "gap_closed": gap_closed,
        "tested": len(comparison.tested),
        "level": LEVEL,
        "has_seeds": any(len(model.seeds) > 1 for model in comparison.models),
    }
    return Section("Scores", document, values)


def mean_rows(comparison: Comparison) -> list[Values]:
    """Return the mean over tasks, over the kinds' means, and of each kind with several tasks."""
    kinds: dict[str, list[TaskScores]] = {}
    for task in comparison.tasks:
        kinds.setdefault(task.first.kind, []).append(task)
    rows = [overall(comparison)] if len(comparison.tasks) > 1 else []
    if 1 < len(kinds) < len(comparison.tasks):
        means = zip(*map(comparison.means, kinds.values()), strict=True)
        cells = _cells([statistics.fmean(each) for each in means])
        rows.append({"name": "Mean over kinds", "about": f"{len(kinds)} kinds", "cells": cells})
        rows += [
            _mean_row(name.replace("_", " "), comparison, tasks) for name, tasks in kinds.items() if len(tasks) > 1
        ]
    return rows


def overall(comparison: Comparison) -> Values:
    """Return the mean over tasks, those that are tested if there are any: what the verdict is about."""
    tasks = comparison.tested or comparison.tasks
    name = "Mean over tasks" if len(tasks) == len(comparison.tasks) else "Mean over tested tasks"
    return _mean_row(name, comparison, tasks)


def settings_as_text(differing: DifferingSettings) -> dict[str, tuple[str, ...]]:
    """Return settings as text, without those that a sidecar repeats under another key."""
    texts: dict[str, tuple[str, ...]] = {}
    for key, values in differing.items():
        text, last = tuple(map(_setting_text, values)), key.rpartition(".")[2]
        if not any(other.rpartition(".")[2] == last and texts[other] == text for other in texts):
            texts[key] = text
    return texts


def chart_rows(names: Sequence[str], rows: Sequence[Values]) -> list[Values]:
    """Return differences from the base in points, with their intervals: those that were tested."""
    return [
        {
            "task": f"{row['name']} {row['split']}",
            "model": name,
            **{key: round(100 * getattr(cell["test"], key), 3) for key in ("difference", "low", "high")},
            "outcome": cell["outcome"] or "not distinguishable",
        }
        for row in rows
        for name, cell in zip(names, row["cells"], strict=True)
        if cell["test"] is not None
    ]


def gaps_of(subject: Subject) -> list[Values]:
    """Return what `run.json` says of the share of the gap closed in compression stages, by model, run and stage.

    `run` is the number of a model's run, from 1; None if it has one.
    """
    return [
        {"model": name, "run": number if len(seeds) > 1 else None, "stage": stage, "found": entry}
        for name, seeds in subject.sources.items()
        for number, source in enumerate(seeds, start=1)
        for stage, entry in source.gaps().items()
    ]


def _row(task: TaskScores, tests: Sequence[Tested | None]) -> Values:
    seeds = [[result.main_score for result in results] for results in task.results]
    entry = {
        "task": task.label,
        "metric": metric_of(task.first),
        "seeds": seeds,
        "scores": task.scores,
        "differences": [test and vars(test) for test in tests],
    }
    cells = _cells(task.scores)
    for cell, seed_scores, test in zip(cells, seeds, tests, strict=True):
        cell["spread"] = statistics.stdev(seed_scores) if len(seed_scores) > 1 else None
        if test is not None:
            cell |= {"test": test, "outcome": test.outcome}
    return {
        "name": task.first.task,
        "split": task.first.split,
        "about": f"{metric_of(task.first)}, {size_of(task.first.counts)}",
        "cells": cells,
        "is_regression": any(cell["outcome"] == "worse" for cell in cells),
        "entry": entry,
    }


def _mean_row(name: str, comparison: Comparison, tasks: Sequence[TaskScores]) -> Values:
    cells = _cells(comparison.means(tasks))
    if all(task.is_tested for task in tasks):
        for model, cell in enumerate(cells[1:], start=1):
            cell["test"] = comparison.mean_difference(model, tasks=tasks)
    return {"name": name, "about": f"{len(tasks)} tasks", "cells": cells}


def _cells(scores: Sequence[float]) -> list[Values]:
    """Return the models' cells: score, spread over seeds, difference from the base with its test and outcome."""
    cells: list[Values] = []
    for score in scores:
        difference = score - scores[0] if cells else None
        cells.append({"score": score, "difference": difference, "spread": None, "test": None, "outcome": None})
    return cells


def _setting_text(value: Any) -> str:
    if value is None or value == "":
        return "not set" if value is None else "empty"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value[:12]}…" if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{40,}", value) else str(value)
