"""`embrew data`: what was understood of training data and what the model sees of it; test data for offline use."""

from __future__ import annotations

import typer

from embrew.cli.data import fetch, mine, overlap, show

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Look at training data as the model will see it; find hard negatives; fetch test data."""


app.command("fetch")(fetch.fetch)
app.command("mine")(mine.mine)
app.command("show")(show.show)
app.command("overlap")(overlap.overlap)
