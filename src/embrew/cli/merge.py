"""`embrew merge`: merge adapters into the base model."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from embrew.cli.arguments import Dtype, Quiet, Verify
from embrew.cli.console import loading, out


def merge(
    model: Path,
    folder: Path,
    *,
    dtype: Dtype = "auto",
    overwrite: bool = False,
    verify: Verify = "full",
    quiet: Quiet = False,
) -> None:
    """Merge an encoder's adapters into its base model.

    Weights are added in float32; vectors stay the same.

    Args:
        model: Folder of a trained encoder or of a training run.
        folder (DIR): Folder to write.
        dtype: Data type of the merged weights; auto = as the encoder was saved.
        overwrite: Replace DIR if it exists.
    """
    loading(model)
    from embrew.merging import merge_encoder

    merge_encoder(model, folder, dtype=dtype, overwrite=overwrite, verify=verify)
    out().print(f'[bold]{escape(str(folder))}[/]: open it with Encoder.from_pretrained("{escape(str(folder))}")')
