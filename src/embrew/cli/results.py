"""Results of several models: `embrew table`, `embrew diff` of two, and pages of `embrew compare`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embrew.cli.arguments import Data, OptionalOutput, Output, Suite
from embrew.cli.console import Record, command_line, print_line, print_table
from embrew.cli.signals import stopping

if TYPE_CHECKING:
    from embrew.report.comparison import Comparison
    from embrew.report.making import Tasks
    from embrew.report.sources import ModelSource


def table(
    results: list[str],
    *,
    suite: Suite = None,
    intervals: bool = False,
    output: OptionalOutput = None,
) -> Record:
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
    from embrew.report.comparison import check_same_data, models_of
    from embrew.report.tables import as_markdown, csv_text, grid

    rows = models_of(results)
    check_same_data(rows)
    named = None if suite is None else read_averages(suite)
    header, cells = grid(rows, intervals=intervals, named=named)
    # one row per task: there are more tasks than models
    print_table(
        ["model", *(row.name for row in rows)],
        ([column, *(line[i] for line in cells)] for i, column in enumerate(header[1:], start=1)),
        left=["model"],
        bold=["model"],
        wraps=["model"],
    )
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
    return {"models": models}


def diff(a: str, b: str) -> Record:
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
    if changed:
        names = ("key", "A", "B")
        rows = ([key, *map(_value, values)] for key, values in changed.items())
        print_table(names, rows, left=names, wraps=names, title="settings")
    else:
        print_line("no differences in settings")
    scores = _show_differences(comparison) if comparison.tasks else {}
    if not comparison.tasks:
        print_line("no task that can be compared")
    for line in (*(f"not compared: {task}: {reason}" for task, reason in left_out.items()), *sentences):
        print_line(line)
    return {
        "settings": {key: {"a": ours, "b": theirs} for key, (ours, theirs) in changed.items()},
        "scores": scores,
        "left_out": left_out,
        "verdict": sentences,
    }


def _show_differences(comparison: Comparison) -> dict[str, Record]:
    """Print the scores of both folders, their differences and tests; return them by task."""
    by_task: dict[str, Record] = {}
    rows = []
    for task, test in zip(comparison.tasks, comparison.differences(1), strict=True):
        ours, theirs = task.scores
        by_task[task.label] = {"a": ours, "b": theirs}
        cells = [f"{100 * ours:.2f}", f"{100 * theirs:.2f}", f"{100 * (theirs - ours):+.2f}"]
        if test is not None:
            by_task[task.label]["difference"] = vars(test)
            cells += [
                f"[{100 * test.low:+.1f}, {100 * test.high:+.1f}]",
                f"{test.p_value:.3f}",
                f"{test.corrected:.3f}",
            ]
        rows.append([task.label, *cells])
    names = ("task", "A", "B", "B - A", "95 % interval", "p", "p corrected")
    print_table(names, rows, left=["task"], title="scores")
    return by_task


def _value(value: Any) -> str:
    """Return a setting as a cell: text unchanged, a dash for a missing one, other values as JSON."""
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def compare(models: list[str], *, output: Output, suite: Suite = None, data: Data = None) -> Record:
    """Compare models in one offline HTML page.

    The first model is the base of all differences. The same command resumes; finished evaluations are not repeated.

    Args:
        models ([NAME=]PATH...): Results, trained folders, stages, sweeps, exports, Sentence-Transformers folders,
            recipes without stages; those with the same NAME are seeds of a model.
        output (FILE.html): File of the report; .json beside it, and .files for what is evaluated.
        suite: Suite that models without results are evaluated on; --data is the folder of its data sets.
        data (DIR): Data folder that models without results are evaluated on. Repeatable.
    """
    from embrew.evaluation.suites import read_tasks
    from embrew.report.making import make_report, report_files
    from embrew.report.sources import read_sources

    if output.suffix != ".html":
        raise ValueError(f"--output {output}: the report is an HTML page; give FILE.html")
    tasks, _ = read_tasks(suite, data or ())
    with stopping(lambda: f"what is finished is in {report_files(output)}; the same command resumes"):
        document = make_report(read_sources(models), tasks, output, command=command_line())
    for sentence in document["verdict"]:
        print_line(sentence)
    print_line(f"written to {output}")
    return document


def page_model(model: str, file: Path, output: Path | None) -> tuple[str, ModelSource]:
    """Return name and source of the model of a page, with the folder of its results; of a run, the last stage."""
    from embrew.report.making import results_of
    from embrew.report.page import check_packages
    from embrew.report.sources import read_sources

    check_packages()
    if file.suffix != ".html":
        raise ValueError(f"--report {file}: the report is an HTML page; give FILE.html")
    *_, (name, (source,)) = read_sources([model]).items()
    return name, replace(source, results=output or results_of(file, name))


def write_page(name: str, source: ModelSource, tasks: Tasks, file: Path, encoder: Any) -> None:
    """Write the page of one model, whose open encoder is measured."""
    from embrew.evaluation.kinds import KINDS
    from embrew.report.comparison import with_pooling
    from embrew.report.making import make_report

    report_tasks = [task for task in tasks if not KINDS[getattr(task, "kind", "sts")].grid]
    sources = {with_pooling(name, source.pooling): [source]}
    make_report(sources, report_tasks, file, opener=lambda _: encoder, command=command_line())
    print_line(f"written to {file}")
