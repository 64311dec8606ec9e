"""Rows of the score grid: means per kind and over tasks, then the tasks, those with a significant loss first."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from embrew.comparison import Comparison, TaskScores, Tested
from embrew.evaluation.uncertainty import Difference


class Cell(NamedTuple):
    """A model's score in a row.

    Attributes:
        score: Mean over seeds, from 0 to 1.
        spread: Standard deviation over seeds; None with one seed, and of means.
        difference: Score minus that of the base; None for the base.
        test: Interval of the difference; None for the base and where examples are missing.
        outcome: `better` or `worse` at the 5 % level after Holm's correction; None otherwise.
    """

    score: float
    spread: float | None = None
    difference: float | None = None
    test: Difference | None = None
    outcome: str | None = None


class TaskRow(NamedTuple):
    """A task with one cell per model."""

    task: TaskScores
    cells: tuple[Cell, ...]
    tests: tuple[Tested | None, ...]

    @property
    def is_regression(self) -> bool:
        """Whether a model is significantly worse than the base."""
        return any(cell.outcome == "worse" for cell in self.cells)


class MeanRow(NamedTuple):
    """A mean over tasks with one cell per model."""

    name: str
    of: str
    cells: tuple[Cell, ...]


def task_rows(comparison: Comparison) -> list[TaskRow]:
    """Return a row per task: those with a significant loss first, then by the lowest difference."""
    tested = [comparison.differences(model) for model in range(1, len(comparison.models))]
    rows = []
    for i, task in enumerate(comparison.tasks):
        tests = (None, *(of_model[i] for of_model in tested))
        cells = tuple(_cell(task, model, test) for model, test in enumerate(tests))
        rows.append(TaskRow(task, cells, tests))

    def lowest(row: TaskRow) -> float:
        return min((cell.difference or 0.0 for cell in row.cells[1:]), default=0.0)

    return sorted(rows, key=lambda row: (not row.is_regression, lowest(row)))


def mean_rows(comparison: Comparison) -> list[MeanRow]:
    """Return the mean over tasks, over the kinds' means, and of each kind with several tasks."""
    kinds: dict[str, list[TaskScores]] = {}
    for task in comparison.tasks:
        kinds.setdefault(task.first.kind, []).append(task)
    rows = [overall(comparison)] if len(comparison.tasks) > 1 else []
    if 1 < len(kinds) < len(comparison.tasks):
        means = list(zip(*(comparison.means(tasks) for tasks in kinds.values()), strict=True))
        scores = [statistics.fmean(each) for each in means]
        rows.append(MeanRow("Mean over kinds", f"{len(kinds)} kinds", tuple(_untested(scores))))
        rows += [_mean(name.replace("_", " "), comparison, tasks) for name, tasks in kinds.items() if len(tasks) > 1]
    return rows


def overall(comparison: Comparison) -> MeanRow:
    """Return the mean over tasks, those that are tested if there are any: what the verdict is about."""
    tasks = comparison.tested or comparison.tasks
    name = "Mean over tasks" if len(tasks) == len(comparison.tasks) else "Mean over tested tasks"
    return _mean(name, comparison, tasks)


def _cell(task: TaskScores, model: int, test: Tested | None) -> Cell:
    seeds = [result.main_score for result in task.results[model]]
    spread = statistics.stdev(seeds) if len(seeds) > 1 else None
    difference = task.scores[model] - task.scores[0] if model else None
    if test is None:
        return Cell(task.scores[model], spread, difference)
    outcome = None if test.outcome == "not distinguishable" else test.outcome
    return Cell(task.scores[model], spread, difference, test.test, outcome)


def _mean(name: str, comparison: Comparison, tasks: Sequence[TaskScores]) -> MeanRow:
    cells = _untested(comparison.means(tasks))
    if all(task.is_tested for task in tasks):
        tests = [comparison.mean_difference(model, tasks=tasks) for model in range(1, len(cells))]
        cells = [cells[0], *(cell._replace(test=test) for cell, test in zip(cells[1:], tests, strict=True))]
    return MeanRow(name, f"{len(tasks)} tasks", tuple(cells))


def _untested(scores: Sequence[float]) -> list[Cell]:
    return [Cell(score, difference=score - scores[0] if model else None) for model, score in enumerate(scores)]
