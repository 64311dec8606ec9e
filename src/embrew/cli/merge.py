"""`embrew merge`: merge adapters into the base model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from embrew.cli.arguments import Dtype, Quiet, Verify
from embrew.cli.console import loading, out


def merge(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained encoder or of a training run.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write.")],
    dtype: Annotated[
        Dtype, typer.Option(help="Data type of the merged weights; auto = as the encoder was saved.")
    ] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DIR if it exists.")] = False,
    verify: Verify = "full",
    quiet: Quiet = False,
) -> None:
    """Merge an encoder's adapters into its base model.

    Weights are added in float32; vectors stay the same.
    """
    loading(model)
    from embrew.merging import merge_encoder

    merge_encoder(model, folder, dtype=dtype, overwrite=overwrite, verify=verify)
    out().print(f'[bold]{escape(str(folder))}[/]: open it with Encoder.from_pretrained("{escape(str(folder))}")')
