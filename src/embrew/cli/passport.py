"""`embrew passport`: write the file that any endpoint is compared with."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from embrew.cli.arguments import Model, ModelPooling
from embrew.cli.console import loading, print_line


def passport(
    model: Model,
    *,
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("passport"),
    pooling: ModelPooling = None,
    int8: bool = False,
    overwrite: bool = False,
) -> None:
    """Write the file that proves what an endpoint serves.

    DIR holds passport.json, passport.safetensors and check_passport.py, which needs Python and numpy only. Saved
    encoders and exports have a passport already.

    Args:
        output (DIR): Folder to write; default: passport.
        int8: Accept weights in 8 bits, too.
        overwrite: Replace DIR if it exists.
    """
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} exists; give another folder, or --overwrite to replace it")
    loading(model)
    from embrew.parity.model_passport import write_model_passport

    about = write_model_passport(model, output, pooling=pooling, int8=int8, overwrite=overwrite).about
    faults = len({entry["fault"] for entry in about["wrong"]})
    print_line((str(output), "bold"), f": {len(about['texts'])} texts, vectors under {faults} faults")
    folder = quote(str(output))
    print_line(f"compare: python {folder}/check_passport.py {folder}/passport.json http://HOST:PORT")
