"""Scores: tasks by models, differences from the first model, what is not compared, and settings that differ."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from embrew.comparison import Comparison, TaskScores, Tested, differing_settings
from embrew.evaluation.uncertainty import LEVEL, Difference
from embrew.inspection import gap_closed
from embrew.report.section import Figure, Section, Subject, VegaChart, colour_by_model

FOLDED = re.compile(r"sha256|hash|(?<!dataset_)revision$|^versions\.|^hardware|^commit")  # settings shown last


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
    """A task with one cell and one test per model."""

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


def section(subject: Subject) -> Section:
    """Return the section."""
    comparison, names = subject.comparison, subject.names
    rows = task_rows(comparison)
    regressions = [row for row in rows if row.is_regression]
    settings = differing_settings(comparison.models)
    texts = settings_as_text(settings)
    gaps = gaps_of(subject)
    values = {
        "names": names,
        "groups": {
            "Means": mean_rows(comparison),
            "Significantly worse than the base for at least one model": regressions,
            "Other tasks" if regressions else "Tasks": [row for row in rows if not row.is_regression],
        },
        "differences": differences_chart(names, rows),
        "left_out": comparison.left_out,
        "settings": {key: text for key, text in texts.items() if not FOLDED.search(key)},
        "folded": {key: text for key, text in texts.items() if FOLDED.search(key)},
        "overlaps": subject.overlaps,
        "gaps": [{**gap, "sentence": gap_closed(gap["found"])} for gap in gaps],
        "tested": len(comparison.tested),
        "level": LEVEL,
        "has_seeds": any(len(model.seeds) > 1 for model in comparison.models),
    }
    document = {
        "models": names,
        "means": comparison.means(),
        "tasks": [_entry(row) for row in rows],
        "left_out": [one._asdict() for one in comparison.left_out],
        "settings": settings,
        "gaps": gaps,
        "overlaps": {name: one._asdict() for name, one in subject.overlaps.items()},
    }
    return Section("scores", "Scores", values, document, tuple(_figures(comparison)))


def task_rows(comparison: Comparison) -> list[TaskRow]:
    """Return a row per task: those with a significant loss first, then by the lowest difference."""
    tested = [comparison.differences(model) for model in range(1, len(comparison.models))]
    rows = []
    for i, task in enumerate(comparison.tasks):
        tests = (None, *(of_model[i] for of_model in tested))
        rows.append(TaskRow(task, tuple(_cell(task, model, test) for model, test in enumerate(tests)), tests))

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
        means = zip(*(comparison.means(tasks) for tasks in kinds.values()), strict=True)
        cells = _untested([statistics.fmean(each) for each in means])
        rows.append(MeanRow("Mean over kinds", f"{len(kinds)} kinds", tuple(cells)))
        rows += [_mean(name.replace("_", " "), comparison, tasks) for name, tasks in kinds.items() if len(tasks) > 1]
    return rows


def overall(comparison: Comparison) -> MeanRow:
    """Return the mean over tasks, those that are tested if there are any: what the verdict is about."""
    tasks = comparison.tested or comparison.tasks
    name = "Mean over tasks" if len(tasks) == len(comparison.tasks) else "Mean over tested tasks"
    return _mean(name, comparison, tasks)


def settings_as_text(differing: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[str, ...]]:
    """Return settings as text, without those that a sidecar repeats under another key."""
    texts: dict[str, tuple[str, ...]] = {}
    for key, values in differing.items():
        text, last = tuple(map(_text, values)), key.rpartition(".")[2]
        if not any(other.rpartition(".")[2] == last and texts[other] == text for other in texts):
            texts[key] = text
    return texts


def differences_chart(names: Sequence[str], rows: Sequence[TaskRow]) -> VegaChart | None:
    """Return differences from the base with intervals, tasks from top to bottom; None if nothing was tested."""
    import altair as alt

    values = [
        {
            "task": f"{row.task.first.task} {row.task.first.split}",
            "model": name,
            **{key: round(100 * getattr(one.test, key), 3) for key in ("difference", "low", "high")},
            "outcome": one.outcome,
        }
        for row in rows
        for name, one in zip(names, row.tests, strict=True)
        if one is not None
    ]
    if not values:
        return None
    of_task = alt.Chart(alt.Data(values=values)).encode(
        y=alt.Y("task:N", title=None, sort=None),
        yOffset=alt.YOffset("model:N", sort=list(names[1:])),
        color=colour_by_model(names),
    )
    whiskers = of_task.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title="difference in points"), x2=alt.X2("high:Q")
    )
    numbers = [alt.Tooltip(f"{name}:Q", format="+.2f") for name in ("difference", "low", "high")]
    points = of_task.mark_point(filled=True, opacity=1, size=60).encode(
        x="difference:Q", tooltip=["task:N", "model:N", *numbers, "outcome:N"]
    )
    zero = alt.Chart(alt.Data(values=[{"zero": 0}])).mark_rule(strokeDash=[3, 3]).encode(x="zero:Q")
    chart = (zero + whiskers + points).properties(height=12 * len(rows) * len(names))
    about = f"Score minus that of {names[0]} in points, with 95 % intervals."
    return VegaChart("differences", chart.to_dict(), about)


def gaps_of(subject: Subject) -> list[dict[str, Any]]:
    """Return what `run.json` says of the share of the gap closed in compression stages, by model, run and stage.

    `run` is the number of a model's run, from 1; None if it has one.
    """
    return [
        {"model": name, "run": number if len(subject.sources[name]) > 1 else None, "stage": stage, "found": entry}
        for name in subject.names
        for number, source in enumerate(subject.sources.get(name, ()), start=1)
        for stage, entry in source.gaps().items()
    ]


def _cell(task: TaskScores, model: int, test: Tested | None) -> Cell:
    seeds = [result.main_score for result in task.results[model]]
    spread = statistics.stdev(seeds) if len(seeds) > 1 else None
    cell = Cell(task.scores[model], spread, task.scores[model] - task.scores[0] if model else None)
    if test is None:
        return cell
    return cell._replace(test=test.test, outcome=None if test.outcome == "not distinguishable" else test.outcome)


def _mean(name: str, comparison: Comparison, tasks: Sequence[TaskScores]) -> MeanRow:
    cells = _untested(comparison.means(tasks))
    if all(task.is_tested for task in tasks):
        tests = [comparison.mean_difference(model, tasks=tasks) for model in range(1, len(cells))]
        cells = [cells[0], *(cell._replace(test=test) for cell, test in zip(cells[1:], tests, strict=True))]
    return MeanRow(name, f"{len(tasks)} tasks", tuple(cells))


def _untested(scores: Sequence[float]) -> list[Cell]:
    return [Cell(score, difference=score - scores[0] if model else None) for model, score in enumerate(scores)]


def _text(value: Any) -> str:
    if value is None or value == "":
        return "not set" if value is None else "empty"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value[:12]}…" if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{40,}", value) else str(value)


def _entry(row: TaskRow) -> dict[str, Any]:
    task = row.task
    return {
        "task": task.label,
        "metric": task.metric,
        "seeds": [[result.main_score for result in results] for results in task.results],
        "scores": task.scores,
        "differences": [test and {**vars(test.test), "corrected": test.corrected} for test in row.tests],
    }


def _figures(comparison: Comparison) -> Iterator[Figure]:
    for m, model in enumerate(comparison.models):
        yield Figure("scores", model.name, "mean score", comparison.means()[m])
        tests = comparison.differences(m) if m else (None,) * len(comparison.tasks)
        for task, one in zip(comparison.tasks, tests, strict=True):
            yield Figure("scores", model.name, "score", task.scores[m], task.label)
            if one is not None:
                test = one.test
                yield Figure("scores", model.name, "difference", test.difference, task.label, test.low, test.high)
                yield Figure("scores", model.name, "corrected p-value", one.corrected, task.label)
