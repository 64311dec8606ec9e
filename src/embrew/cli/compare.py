"""`embrew compare`: several models in one report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from embrew.cli import completion
from embrew.cli.arguments import AsJson, Quiet
from embrew.cli.console import out, print_json
from embrew.cli.signals import stopping


def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]PATH...",
            help="Results, trained folders, stages, sweeps, exports, Sentence-Transformers folders, recipes without "
            "stages; those with the same NAME are seeds of a model.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.html",
            help="File of the report; .json and .csv beside it, and .files for what is evaluated.",
        ),
    ],
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="SUITE",
            autocompletion=completion.suites,
            help="Suite that models without results are evaluated on; --data is the folder of its data sets.",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", "-d", metavar="DIR", help="Data folder that models without results are evaluated on. Repeatable."
        ),
    ] = None,
    encoders: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME=FOLDER",
            help="Encoder of a result folder, for cost, geometry and map, by default the folder that was evaluated. "
            "Repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare models in one offline HTML page.

    The first model is the base of all differences. The same command resumes; finished evaluations are not repeated.
    """
    from embrew.report.making import files_of, make_report
    from embrew.report.page import document
    from embrew.report.sources import read_sources
    from embrew.report.task_data import read_tasks

    if output.suffix != ".html":
        raise ValueError(f"--output {output}: the report is an HTML page; give FILE.html")
    split = [entry.partition("=") for entry in encoders or ()]
    if any(not (name and folder) for name, _, folder in split):
        raise ValueError(f"--model {' '.join(encoders or ())}: give NAME=FOLDER, the name of a model and its encoder")
    sources = read_sources(models, {name: folder for name, _, folder in split})
    tasks = read_tasks(suite, data or ())
    with stopping(lambda: f"what is finished is in {files_of(output)}; the same command resumes"):
        sentences, sections = make_report(sources, tasks, output, command=shlex.join(["embrew", *sys.argv[1:]]))
    for sentence in sentences:
        out().print(sentence, markup=False)
    out().print(f"written to {output}", markup=False, soft_wrap=True)
    print_json(document(sentences, sections))
