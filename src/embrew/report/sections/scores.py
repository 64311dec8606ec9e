"""Scores: tasks by models, differences from the first model, what is not compared, and settings that differ."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from embrew.comparison import Comparison, differing_settings
from embrew.comparison.verdict import best_model
from embrew.evaluation.uncertainty import LEVEL
from embrew.inspection import gap_closed
from embrew.report.score_charts import differences_chart, scores_chart
from embrew.report.score_rows import TaskRow, mean_rows, task_rows
from embrew.report.section import Figure, Section
from embrew.report.setting_groups import FOLDED, setting_groups
from embrew.report.subject import Subject


def section(subject: Subject) -> Section:
    """Return the section."""
    comparison = subject.comparison
    names = [model.name for model in comparison.models]
    rows, means = task_rows(comparison), mean_rows(comparison)
    settings = differing_settings(comparison.models)
    groups = setting_groups(settings)
    gaps = gaps_of(subject)
    values = {
        "names": names,
        "groups": [
            ("Means", means),
            ("Significantly worse than the base for at least one model", [row for row in rows if row.is_regression]),
            (
                "Other tasks" if any(row.is_regression for row in rows) else "Tasks",
                [r for r in rows if not r.is_regression],
            ),
        ],
        "differences": differences_chart(names, rows, names[best_model(comparison)]),
        "seeds": scores_chart(names, rows),
        "left_out": comparison.left_out,
        "settings": {name: found for name, found in groups.items() if name != FOLDED},
        "folded": {name: found for name, found in groups.items() if name == FOLDED},
        "overlaps": subject.overlaps,
        "gaps": [(one.model, one.run, one.stage, gap_closed(one.found)) for one in gaps],
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
        "gaps": [one._asdict() for one in gaps],
        "overlaps": {name: one._asdict() for name, one in subject.overlaps.items()},
    }
    return Section("scores", "Scores", values, document, tuple(_figures(comparison)))


class StageGap(NamedTuple):
    """What `run.json` says of the share of the gap closed in a compression stage of a model's training.

    Attributes:
        model: name of the model.
        run: number of its run, from 1; None: it has one.
        stage: name of the stage.
        found: the entry of `run.json`.
    """

    model: str
    run: int | None
    stage: str
    found: dict[str, Any]


def gaps_of(subject: Subject) -> list[StageGap]:
    """Return the shares of the gap closed of all models."""
    found = []
    for model in subject.comparison.models:
        sources = subject.sources.get(model.name, ())
        for number, source in enumerate(sources, 1):
            run = number if len(sources) > 1 else None
            found += [StageGap(model.name, run, stage, entry) for stage, entry in source.gaps().items()]
    return found


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
        for task, test in zip(comparison.tasks, tests, strict=True):
            yield Figure("scores", model.name, "score", task.scores[m], task.label)
            if test is not None:
                found = test.test
                yield Figure("scores", model.name, "difference", found.difference, task.label, found.low, found.high)
                yield Figure("scores", model.name, "corrected p-value", test.corrected, task.label)
