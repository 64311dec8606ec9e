"""`embrew analyze`: one file per analysis; each compares one or several models."""

from __future__ import annotations

import typer

from embrew.cli.analyze import domain, efficiency, memory, sink, spectrum, surface, uniformity

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Analyse a model's vectors: dimensions, memory tokens, uniformity, layers."""


app.command("spectrum")(spectrum.spectrum)
app.command("memory")(memory.memory)
app.command("uniformity")(uniformity.uniformity)
app.command("surface")(surface.surface)
app.command("domain")(domain.domain)
app.command("efficiency")(efficiency.efficiency)
app.command("sink")(sink.sink)
