"""`embrew compare`: several models in one report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from embrew.cli.arguments import AsJson, Quiet
from embrew.cli.console import out, print_json


def compare(
    models: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]PATH...", help="Result folders; those with the same NAME are seeds of a model."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="File of the report; .json and .csv beside it.")
    ],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare models in one offline HTML page: scores, queries, cost, geometry.

    The first model is the base of all differences.
    """
    from embrew.comparison import compare_models, models_of
    from embrew.report.page import sentences_of, write_report
    from embrew.report.subject import Subject

    subject = Subject(compare_models(models_of(models)), command=shlex.join(["embrew", *sys.argv[1:]]))
    sections = write_report(subject, output)
    sentences = sentences_of(subject, sections)
    for sentence in sentences:
        out().print(sentence, markup=False)
    out().print(f"written to {output}", markup=False, soft_wrap=True)
    print_json({"verdict": sentences, **{section.name: section.document for section in sections}})
