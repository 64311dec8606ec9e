"""`embrew merge`: adapters added to the weights for good."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from embrew.cli.arguments import Dtype, Quiet
from embrew.cli.console import loading, out
from embrew.cli.train import Verify


def merge(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained encoder, or of a training run.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write.")],
    dtype: Annotated[
        Dtype, typer.Option(help="Of the weights written; auto is what the encoder was saved in.")
    ] = Dtype.AUTO,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DIR if it is there.")] = False,
    verify: Annotated[
        Verify, typer.Option(help="Proof of what is written: full loads DIR in a fresh process, fast compares here.")
    ] = Verify.FULL,
    quiet: Quiet = False,
) -> None:
    """Merge an encoder's adapters into its base, in float32: full weights, with the same vectors."""
    loading(model)
    from embrew.modeling.merging import merge_encoder

    merge_encoder(model, folder, dtype=dtype.value, overwrite=overwrite, verify=verify.value)
    out().print(f'[bold]{escape(str(folder))}[/]: open it with Encoder.from_pretrained("{escape(str(folder))}")')
