"""`embrew domain`: an encoder for a domain, and a report, from documents and some questions."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from embrew.cli.analyze.domain import Columns, columns_of, read_sample
from embrew.cli.arguments import Overrides, Quiet
from embrew.cli.console import out
from embrew.cli.signals import stopping


class Learn(StrEnum):
    """What the first stage learns from."""

    AUTO = "auto"
    PAIRS = "pairs"
    TEXT = "text"
    REST = "rest"


def domain(
    documents: Annotated[
        str, typer.Argument(metavar="DOCS", help="Folder of documents: .txt, .md, .jsonl or .pdf files.")
    ],
    overrides: Overrides = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            "--pairs",
            metavar="PAIRS",
            help="File of question-answer pairs or multiple-choice questions: JSON Lines, CSV or Parquet.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Causal language model to train: nano, a folder or a Hub id.")] = "nano",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for data, models, results and report.")
    ] = Path("domain"),
    general: Annotated[
        str | None,
        typer.Option(
            "--general", "-g", metavar="PATH", help="General pairs or texts that the domain is compared with."
        ),
    ] = None,
    column: Columns = None,
    learn: Annotated[
        Learn,
        typer.Option(
            help="What the first stage learns from: pairs = answers to questions, text and rest = documents, "
            "auto = by the number of pairs."
        ),
    ] = Learn.AUTO,
    min_pairs: Annotated[
        int,
        typer.Option(
            "--min-pairs", min=1, metavar="N", help="Number of training pairs from which --learn auto chooses pairs."
        ),
    ] = 500,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Optimiser steps of the first stage; the second has 0.3 times as many. By default by the "
            "amount of data.",
        ),
    ] = None,
    max_chars: Annotated[
        int, typer.Option("--max-chars", min=50, help="Maximum number of characters per passage.")
    ] = 600,
    max_documents: Annotated[
        int,
        typer.Option(
            "--max-documents", min=10, help="Maximum number of texts that held-out questions are searched in."
        ),
    ] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the split and for training.")] = 42,
    export: Annotated[bool, typer.Option(help="Also export a Sentence-Transformers folder.")] = True,
    quiet: Quiet = False,
) -> None:
    """Train an encoder for a domain, from documents and questions.

    Each step is evaluated on held-out questions. The same command resumes a run that was stopped.
    """
    mapping = columns_of(column)
    sample = None if general is None else read_sample(general, {}, 200)
    from embrew.domain import Settings, run
    from embrew.report.making import report_of_folder

    settings = Settings(
        model=model,
        columns=mapping,
        general=sample,
        learn=learn.value,
        min_pairs=min_pairs,
        steps=steps,
        max_chars=max_chars,
        max_documents=max_documents,
        seed=seed,
        overrides=tuple(overrides or ()),
        export=export,
    )
    with stopping(lambda: f"finished parts are in {output}; the same command resumes"):
        run(documents, pairs, output, settings)
    console = out()
    console.print((output / "report.md").read_text(encoding="utf-8"), markup=False, soft_wrap=True)
    page = report_of_folder(output, command=shlex.join(["embrew", *sys.argv[1:]]))
    if page is not None:
        console.print(f"page: [bold]{escape(str(page))}[/]", soft_wrap=True)
    console.print(f"report: [bold]{escape(str(output / 'report.md'))}[/]", soft_wrap=True)
