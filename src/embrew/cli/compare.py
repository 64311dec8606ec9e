"""`embrew compare`, several models in one report, and `embrew evaluate --report`, one."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embrew.cli.arguments import AsJson, Data, Output, Quiet, Suite
from embrew.cli.console import print_json, print_line
from embrew.cli.signals import stopping

if TYPE_CHECKING:
    from embrew.report.making import Tasks
    from embrew.report.sources import ModelSource


def compare(
    models: list[str],
    *,
    output: Output,
    suite: Suite = None,
    data: Data = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare models in one offline HTML page.

    The first model is the base of all differences. The same command resumes; finished evaluations are not repeated.

    Args:
        models ([NAME=]PATH...): Results, trained folders, stages, sweeps, exports, Sentence-Transformers folders,
            recipes without stages; those with the same NAME are seeds of a model.
        output (FILE.html): File of the report; .json and .csv beside it, and .files for what is evaluated.
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
        document = make_report(read_sources(models), tasks, output, command=shlex.join(["embrew", *sys.argv[1:]]))
    for sentence in document["verdict"]:
        print_line(sentence)
    print_line(f"written to {output}")
    print_json(document)


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
    command, sources = shlex.join(["embrew", *sys.argv[1:]]), {with_pooling(name, source.pooling): [source]}
    make_report(sources, report_tasks, file, opener=lambda _: encoder, command=command)
    print_line(f"written to {file}")
