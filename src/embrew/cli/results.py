"""`embrew table` and `embrew diff`: results of several models side by side, and what differs between two."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Column, Table

from embrew.cli.arguments import AsJson, OptionalOutput, Suite
from embrew.cli.console import out, plain_table, print_json, print_line

if TYPE_CHECKING:
    from embrew.report.comparison import Comparison


def table(
    results: list[str],
    *,
    suite: Suite = None,
    intervals: bool = False,
    output: OptionalOutput = None,
    as_json: AsJson = False,
) -> None:
    """Show the scores of several models side by side.

    Args:
        results ([NAME=]DIR...): Result folders; folders with the same NAME are seeds of one model.
        suite: Add the averages that this suite defines.
        intervals: Show 95 % bootstrap intervals over a task's examples, for models with one seed.
        output (FILE): Also write the table to a .md or .csv file.
    """
    if output is not None and output.suffix not in (".md", ".csv"):
        raise ValueError(f"{output}: unknown format; give a .md or .csv file")
    from embrew.evaluation.results import averages, label_of
    from embrew.evaluation.suites import read_averages
    from embrew.files.writing import atomic_path
    from embrew.report.comparison import models_of
    from embrew.report.tables import as_markdown, csv_text, grid

    rows = models_of(results)
    named = None if suite is None else read_averages(suite)
    header, cells = grid(rows, intervals=intervals, named=named)
    columns = Table(Column("model", style="bold"), box=None, pad_edge=False)
    for row in rows:
        columns.add_column(row.name, justify="right")
    for i, column in enumerate(header[1:], start=1):  # one row per task: there are more tasks than models
        columns.add_row(escape(column), *(line[i] for line in cells))
    out().print(columns)
    if output is not None:
        with atomic_path(output) as temporary:
            is_csv = output.suffix == ".csv"
            text = csv_text([["model", *header[1:]], *cells]) if is_csv else as_markdown(header, cells)
            temporary.write_text(text, encoding="utf-8")
        print_line(f"written to {output}")
    models = [
        {
            "model": row.name,
            "seeds": [
                {"averages": averages(run, named), "tasks": {label_of(result): result.main_score for result in run}}
                for run in row.seeds
            ],
        }
        for row in rows
    ]
    print_json({"models": models})


def diff(a: str, b: str, *, as_json: AsJson = False) -> None:
    """Compare settings and scores of two result folders.

    Differences of scores are tested by a paired bootstrap; p-values are corrected for the number of tasks.

    Args:
        a: Result folder.
        b: Result folder to compare with A.
    """
    from embrew.report import Model, compare_models, differing_settings, read_folder, verdict

    comparison = compare_models([Model("A", (read_folder(a),)), Model("B", (read_folder(b),))])
    changed = differing_settings(comparison.models)
    sentences = verdict(comparison) if comparison.tasks else []
    left_out = {task.task: task.reason for task in comparison.left_out}
    columns = [Column(name, overflow="fold") for name in ("key", "A", "B")]
    settings = Table(*columns, box=None, pad_edge=False, title="settings", title_justify="left")
    for key, values in changed.items():
        settings.add_row(escape(key), *(escape(_value(value)) for value in values))
    scores, by_task = _differences(comparison)
    console = out()
    console.print(settings if changed else "no differences in settings")
    console.print(scores if comparison.tasks else "no task that can be compared")
    for line in (*(f"not compared: {task}: {reason}" for task, reason in left_out.items()), *sentences):
        print_line(line)
    print_json(
        {
            "settings": {key: {"a": ours, "b": theirs} for key, (ours, theirs) in changed.items()},
            "scores": by_task,
            "left_out": left_out,
            "verdict": sentences,
        }
    )


def _differences(comparison: Comparison) -> tuple[Table, dict[str, dict[str, Any]]]:
    """Return the scores of both folders, their differences and tests: as a table, and by task."""
    names = ("task", "A", "B", "B - A", "95 % interval", "p", "p corrected")
    table = plain_table(names, left=("task",), title="scores")
    by_task: dict[str, dict[str, Any]] = {}
    for task, test in zip(comparison.tasks, comparison.differences(1), strict=True):
        ours, theirs = task.scores
        by_task[task.label] = {"a": ours, "b": theirs}
        cells = [f"{100 * ours:.2f}", f"{100 * theirs:.2f}", f"{100 * (theirs - ours):+.2f}"]
        if test is not None:
            by_task[task.label]["difference"] = vars(test)
            interval = f"[{100 * test.low:+.1f}, {100 * test.high:+.1f}]"
            cells += [escape(interval), f"{test.p_value:.3f}", f"{test.corrected:.3f}"]
        table.add_row(escape(task.label), *cells)
    return table, by_task


def _value(value: Any) -> str:
    """Return a setting as a cell: text unchanged, a dash for a missing one, other values as JSON."""
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
