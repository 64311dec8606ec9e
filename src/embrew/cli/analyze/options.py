"""Options that several analyses take, and the check of the files that they write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from embrew.cli import completion

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        autocompletion=completion.recipes,
        help="Folders of trained encoders or Sentence-Transformers models, Hub ids, or recipes.",
    ),
]
Data = Annotated[
    str,
    typer.Option("--data", "-d", metavar="DIR_OR_FILE", help="Texts: a corpus, rows with text, or sentence pairs."),
]
Pairs = Annotated[
    str, typer.Option("--data", "-d", metavar="DIR_OR_FILE", help="Sentence pairs with scores (an STS set).")
]
Split = Annotated[
    str | None,
    typer.Option(help="Split of a data folder; by default test, or dev or train where there is no test split."),
]
MaxTexts = Annotated[
    int | None,
    typer.Option(
        "--max-texts", min=2, metavar="N", help="Number of texts to sample, with a fixed seed; by default all."
    ),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw all models in one figure.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write the numbers to a JSON file.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output files.")]
BatchTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of tokens per batch, padding included; by default a batch has 32 texts."),
]


def check_files(
    models: Sequence[str], overwrite: bool, *, plots: Sequence[Path | None], files: Sequence[Path | None]
) -> None:
    """Raise, before any model is opened, for output files that cannot be written and models given twice."""
    from embrew.analysis.plots import check_format

    for plot in plots:
        if plot is not None:
            check_format(plot)
    for file in (*plots, *files):
        if file is not None and file.exists() and not overwrite:
            raise FileExistsError(f"{file} exists; give another file, or --overwrite to replace it")
    twice = next((name for name in models if models.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice; give each model once")
