"""The command line. One file per command: it parses arguments, calls one function and prints the result."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed
from typing import Annotated

import typer

from embrew.cli import (
    adapt,
    analyze,
    center,
    context,
    data,
    encode,
    evaluate,
    export,
    merge,
    parity,
    passport,
    plan,
    push,
    questions,
    recipe,
    results,
    runs,
    search,
    serve,
    signals,
    train,
)
from embrew.cli.options import command
from embrew.machine import set_threads

app = typer.Typer(
    cls=signals.Commands,
    help="Turn open causal language models into text-embedding models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
WITHOUT_LOG_LINES = (results.table, results.diff, plan.plan, runs.runs, runs.doctor, runs.cache)
for function in (
    adapt.adapt,
    train.train,
    adapt.into_space,
    questions.questions,
    evaluate.evaluate,
    results.table,
    results.diff,
    results.compare,
    encode.encode,
    search.search,
    serve.serve,
    export.export,
    parity.parity,
    passport.passport,
    merge.merge,
    merge.average,
    center.center,
    push.push,
    plan.plan,
    runs.runs,
    runs.doctor,
    runs.cache,
):
    command(app, quiet=function not in WITHOUT_LOG_LINES)(function)
app.add_typer(analyze.app, name="analyze", help="Analyse vectors, attention, layers or learning curves of models.")
app.add_typer(
    context.app,
    name="context",
    help="Add, list and remove prompts with demonstrations of a model.",
)
app.add_typer(recipe.app, name="recipe", help="List, show, copy and check recipes.")
app.add_typer(data.app, name="data", help="Show training data, mine hard negatives, download test data.")


def _version(value: bool) -> None:
    if value:
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
