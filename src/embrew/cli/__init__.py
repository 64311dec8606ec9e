"""The command line. One file per command: it parses arguments, calls one function and prints the result."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed
from typing import Annotated

import typer

from embrew.cli import (
    adapt,
    average,
    compare,
    context,
    data,
    doctor,
    encode,
    evaluate,
    export,
    into_space,
    merge,
    parity,
    plan,
    push,
    recipe,
    results,
    runs,
    search,
    serve,
    signals,
    train,
)
from embrew.cli.analyze import analyze
from embrew.cli.errors import Commands
from embrew.threads import set_threads

app = typer.Typer(
    cls=Commands,
    help="Turn open causal language models into text-embedding models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("adapt")(adapt.adapt)
app.command("train", epilog="Many GPUs: accelerate launch -m embrew train RECIPE --output DIR")(train.train)
app.command("into-space")(into_space.into_space)
app.command("evaluate")(evaluate.evaluate)
app.command("analyze")(analyze)
app.command("table")(results.table)
app.command("diff")(results.diff)
app.command("compare")(compare.compare)
app.command("encode")(encode.encode)
app.command("search")(search.search)
app.command("serve")(serve.serve)
app.command("export")(export.export)
app.command("parity")(parity.parity)
app.command("merge")(merge.merge)
app.command("average")(average.average)
app.command("push")(push.push)
app.command("plan")(plan.plan)
app.command("runs")(runs.runs)
app.command("doctor")(doctor.doctor)
app.add_typer(
    context.app,
    name="context",
    help="Add, list and remove prompts with demonstrations of a model.",
)
app.add_typer(recipe.app, name="recipe", help="List, show, copy and check recipes.")
app.add_typer(data.app, name="data", help="Show training data, mine hard negatives, download test data.")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"embrew {installed('embrew')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command. `Commands` reads `debug`."""


def main() -> None:
    """Run the command line."""
    set_threads()
    signals.listen()
    try:
        app(prog_name="embrew")
    except KeyboardInterrupt as error:  # before a command has begun
        sys.exit(signals.exit_code(error))
