"""`embrew data`: show training data, mine hard negatives, download test data."""

from __future__ import annotations

import typer

from embrew.cli.data import fetch, mine, overlap, show
from embrew.cli.options import command

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show training data as the model sees it, mine hard negatives, download test data."""


for function in (fetch.fetch, mine.mine, show.show, overlap.overlap):
    command(app)(function)
