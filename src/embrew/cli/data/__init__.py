"""`embrew data`: show training data, mine hard negatives, download test data."""

from __future__ import annotations

import typer

from embrew.cli.data import fetch, mine, overlap, show

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show training data as the model sees it, mine hard negatives, download test data."""


app.command("fetch")(fetch.fetch)
app.command("mine")(mine.mine)
app.command("show")(show.show)
app.command("overlap")(overlap.overlap)
