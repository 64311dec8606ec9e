"""`embrew analyze KIND`: figures about models or runs, as a table, JSON, CSV and a picture."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from embrew.cli import completion
from embrew.cli.analyze.demonstrations import demonstrations
from embrew.cli.analyze.domain import domain
from embrew.cli.analyze.kinds import Outcome, efficiency, memory, sink, spectrum, surface, truncation, uniformity
from embrew.cli.console import Record, print_line, print_table
from embrew.cli.options import command, options_of
from embrew.extras import import_extra
from embrew.files.formats import versions

app = typer.Typer(no_args_is_help=True)
Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        autocompletion=completion.recipes,
        help="Folders of encoders or Sentence-Transformers models, Hub ids, or recipes.",
    ),
]
OutputFolder = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write KIND.json, KIND.csv and KIND.png.")
]
Picture = Annotated[Literal["png", "svg", "pdf"], typer.Option(help="Format of the picture in --output.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output files.")]


@app.callback()
def _group() -> None:
    """Analyse vectors, attention, layers or learning curves of models."""


def _add(kind: Callable[..., Outcome]) -> None:
    """Add a kind of analysis as a command, which takes its options, and shows and writes the outcome."""

    @options_of(kind)
    def analyze(
        context: typer.Context,
        models: Models,
        *,
        output: OutputFolder = None,
        picture: Picture = "png",
        overwrite: Overwrite = False,
        **options: Any,
    ) -> Record:
        name = kind.__name__
        chosen = {key: value for key, value in options.items() if _is_given(context, key)}
        twice = next((model for model in models if models.count(model) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is given twice; give each once")
        files = [] if output is None else [output / f"{name}.{suffix}" for suffix in ("json", "csv", picture)]
        existing = next((file for file in files if file.exists()), None)
        if existing is not None and not overwrite:
            raise FileExistsError(f"{existing} exists; give another folder, or --overwrite to replace it")
        if files:  # before texts are encoded
            import_extra("matplotlib", "plots", "the picture in --output")
        outcome = kind(models, **chosen)
        show(outcome)
        document = {"analysis": name, **chosen, **outcome.settings, "versions": versions(), "models": outcome.models}
        if files:
            write(document, outcome, files, overwrite=overwrite)
        return document

    analyze.__doc__ = kind.__doc__
    command(app, kind.__name__, quiet=True)(analyze)


def _is_given(context: typer.Context, name: str) -> bool:
    """Return whether an option is on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def show(outcome: Outcome) -> None:
    """Print the table and the sentences."""
    names = list(dict.fromkeys(name for row in outcome.table for name in row))
    rows = [[cell(row.get(name)) for name in names] for row in outcome.table]
    print_table(names, rows, left=names[:1], bold=names[:1], wraps=names, title=outcome.title)
    for line in outcome.lines:
        print_line(line)


def cell(value: Any) -> str:
    """Return a value as a cell: four digits of a number; a dash for a missing one."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)


def write(document: Record, outcome: Outcome, files: Sequence[Path], *, overwrite: bool) -> None:
    """Write the figures of all models to a JSON file, a CSV file and a picture."""
    from embrew.files.writing import atomic_path, write_json

    files[0].parent.mkdir(parents=True, exist_ok=True)
    write_json(files[0], document, overwrite=overwrite)
    with atomic_path(files[1]) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in outcome.rows for key in row)))
        writer.writeheader()
        writer.writerows(outcome.rows)
    if outcome.plot is not None:
        outcome.plot(files[2])


for function in (spectrum, memory, uniformity, sink, surface, truncation, efficiency, demonstrations, domain):
    _add(function)
