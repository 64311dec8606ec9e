"""`embrew domain`: documents and some questions in, an encoder of that domain and a report out."""

from __future__ import annotations

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
    documents: Annotated[str, typer.Argument(metavar="DOCS", help="Folder of .txt, .md, .jsonl or .pdf files.")],
    overrides: Overrides = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            "--pairs", metavar="PAIRS", help="Questions and answers, or multiple choice: JSONL, CSV, Parquet."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="nano, a folder or Hub id of a causal language model.")] = "nano",
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where all of it goes.")] = Path(
        "domain"
    ),
    general: Annotated[
        str | None, typer.Option("--general", "-g", metavar="PATH", help="General pairs or texts, to compare with.")
    ] = None,
    column: Columns = None,
    learn: Annotated[
        Learn,
        typer.Option(help="pairs: answers; text, rest: the documents; auto: by the number of pairs."),
    ] = Learn.AUTO,
    min_pairs: Annotated[
        int, typer.Option("--min-pairs", min=1, metavar="N", help="Training pairs from which on auto is pairs.")
    ] = 500,
    steps: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Steps of learning; representing has 0.3 times as many."),
    ] = None,
    max_chars: Annotated[int, typer.Option("--max-chars", min=50, help="Characters of a passage.")] = 600,
    max_documents: Annotated[
        int, typer.Option("--max-documents", min=10, help="Texts that held-out questions are searched in.")
    ] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of the split and of training.")] = 42,
    export: Annotated[bool, typer.Option(help="Write a stock Sentence-Transformers folder.")] = True,
    quiet: Quiet = False,
) -> None:
    """Learn a domain, then represent it, and evaluate each step on held-out questions; resumes a stopped run."""
    mapping = columns_of(column)
    sample = None if general is None else read_sample(general, {}, 200)
    from embrew.domain import Settings, run

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
    with stopping(lambda: f"what is finished is in {output}; the same command resumes"):
        run(documents, pairs, output, settings)
    console = out()
    console.print((output / "report.md").read_text(encoding="utf-8"), markup=False, soft_wrap=True)
    console.print(f"report: [bold]{escape(str(output / 'report.md'))}[/]", soft_wrap=True)
