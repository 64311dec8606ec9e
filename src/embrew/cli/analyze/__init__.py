"""`embrew analyze KIND`: figures about models or runs, as a table, JSON, CSV and a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from embrew.cli import completion
from embrew.cli.analyze.cost import cost, demonstrations
from embrew.cli.analyze.domain import domain
from embrew.cli.analyze.kinds import Outcome, efficiency, memory, sink, spectrum, surface, truncation, uniformity
from embrew.cli.arguments import AsJson, Quiet
from embrew.cli.console import out, print_json, print_line, wants_json
from embrew.cli.options import command, options_of
from embrew.extras import import_extra

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
        as_json: AsJson = False,
        quiet: Quiet = False,
        **options: Any,
    ) -> None:
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
        write(name, outcome, chosen, files, overwrite=overwrite)

    analyze.__doc__ = kind.__doc__
    command(app, kind.__name__)(analyze)


def _is_given(context: typer.Context, name: str) -> bool:
    """Return whether an option is on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def show(outcome: Outcome) -> None:
    """Print the table and the sentences."""
    columns = list(dict.fromkeys(name for row in outcome.table for name in row))
    table = Table(box=None, pad_edge=False, title=outcome.title)
    for i, name in enumerate(columns):
        table.add_column(name, style="bold" if not i else "", justify="left" if not i else "right")
    for row in outcome.table:
        table.add_row(*(Text(cell(row.get(name))) for name in columns))
    out().print(table)
    for line in outcome.lines:
        print_line(line)


def cell(value: Any) -> str:
    """Return a value as a cell: four digits of a number; a dash for a missing one."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)


def write(kind: str, outcome: Outcome, options: Mapping[str, Any], files: Sequence[Path], *, overwrite: bool) -> None:
    """Write the figures of all models to files, if there are any, and to stdout, if --json is given."""
    if not files and not wants_json():
        return
    from embrew.files.formats import versions
    from embrew.files.writing import atomic_path, write_json

    document = {"analysis": kind, **options, **outcome.settings, "versions": versions(), "models": outcome.models}
    print_json(document)
    if not files:
        return
    files[0].parent.mkdir(parents=True, exist_ok=True)
    write_json(files[0], document, overwrite=overwrite)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in outcome.rows for key in row)))
    writer.writeheader()
    writer.writerows(outcome.rows)
    with atomic_path(files[1]) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")
    if outcome.plot is not None:
        outcome.plot(files[2])


for function in (spectrum, memory, uniformity, sink, surface, truncation, efficiency, cost, demonstrations, domain):
    _add(function)
