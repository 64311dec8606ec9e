"""`embrew export`: write a stock Sentence-Transformers folder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from embrew.cli.arguments import Model, Quiet
from embrew.cli.console import loading, out


class Proof(StrEnum):
    """How an export is proven."""

    FULL = "full"
    OFF = "off"


def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DIR if it is there.")] = False,
    verify: Annotated[
        Proof, typer.Option(help="full opens DIR in a fresh process without embrew and compares vectors.")
    ] = Proof.FULL,
    prompt_name: Annotated[
        str | None,
        typer.Option(help="Which prompt is baked in, where the template has the instruction after the text."),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Tokens that the folder truncates every text to, prompts and contexts included; required where the "
            "model has one length for queries and another for documents.",
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Keep the first N layers and delete the others.")
    ] = None,
    dim: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Keep K leading dimensions, then normalise.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Export a model as a folder that SentenceTransformer(DIR) opens by itself, with the same vectors."""
    if folder.exists() and not overwrite:
        raise FileExistsError(f"{folder} exists; give another folder, or --overwrite to replace it")
    loading(model)
    from embrew import build
    from embrew.export.sentence_transformers import export_sentence_transformer
    from embrew.modeling.encoder import Encoder

    encoder = build.open_model(model)
    if not isinstance(encoder, Encoder):
        raise ValueError(f"{model} is a Sentence-Transformers model already; there is nothing to export")
    export_sentence_transformer(
        encoder,
        folder,
        overwrite=overwrite,
        verify=verify.value,
        prompt_name=prompt_name,
        max_length=max_length,
        num_layers=layers,
        truncate_dim=dim,
    )
    out().print(f'[bold]{escape(str(folder))}[/]: open it with SentenceTransformer("{escape(str(folder))}")')
