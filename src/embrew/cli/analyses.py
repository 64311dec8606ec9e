"""What all analyses share: options, tables, and how models are opened and figures written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

Models = Annotated[
    list[str],
    typer.Argument(metavar="MODEL", help="Trained folders, Sentence-Transformers folders, Hub ids, or recipes."),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw all models into one picture.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write the figures here.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")]
BatchTokens = Annotated[int | None, typer.Option(min=1, help="Padded tokens a batch.")]


def check(
    models: Sequence[str], overwrite: bool, *, pictures: Sequence[Path | None], files: Sequence[Path | None]
) -> None:
    """Refuse before the work what would fail after it."""
    from embrew.analysis.plots import check_format

    for picture in pictures:
        if picture is not None:
            check_format(picture)
    for file in (*pictures, *files):
        if file is not None and file.exists() and not overwrite:
            raise FileExistsError(f"{file} exists; give another file, or --overwrite to replace it")
    twice = next((name for name in models if models.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice; name each model once")


@contextmanager
def opened(name: str) -> Iterator[Any]:
    """A model, opened when its turn comes; what goes wrong with it is said with its name."""
    from embrew.build import open_model

    encoder = open_model(name)
    try:
        yield encoder
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def new_table(*columns: str) -> Table:
    """A table with a row a model."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("model", style="bold")
    for column in columns:
        shown.add_column(column, justify="right")
    return shown


def model_entry(name: str, encoder: Any) -> dict[str, Any]:
    """How a result file names a model."""
    from embrew.protocol import model_hash

    return {"model": name, "model_hash": model_hash(encoder)}


def write(output: Path | None, analysis: str, entries: Sequence[dict[str, Any]], **settings: Any) -> None:
    """Write the figures of all models, where they are wanted."""
    if output is None:
        return
    from embrew.files.writing import write_json
    from embrew.provenance import versions

    write_json(output, {"analysis": analysis, **settings, "versions": versions(), "models": list(entries)})
