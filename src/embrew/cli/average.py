"""`embrew average`: average encoders of one base."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from embrew.cli.arguments import Quiet, Verify
from embrew.cli.console import loading, out


def average(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="Folders of encoders or of training runs, two or more.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write.")],
    method: Annotated[
        Literal["linear", "slerp"],
        typer.Option(help="How the changes of each weight are averaged; slerp, along the arc between those of two."),
    ] = "linear",
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="W,W,...", help="Weight of each MODEL, with the sum 1; equal by default. Repeatable with --dev."
        ),
    ] = None,
    dev: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DATA",
            help="Data folder or file to choose the weights on, by its dev split; repeatable. Without --weights: each "
            "MODEL alone, and equal weights of the best two, three, ...",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DIR if it exists.")] = False,
    verify: Verify = "full",
    quiet: Quiet = False,
) -> None:
    """Average encoders that were trained from one base model.

    Of LoRAs, the result is one LoRA, whose rank is the sum of theirs.
    """
    mixtures = [_numbers(each) for each in weights or ()]
    loading(", ".join(map(str, models)))
    from embrew.averaging import average as write

    write(models, output, method=method, mixtures=mixtures, dev=dev or (), overwrite=overwrite, verify=verify)
    out().print(f'[bold]{escape(str(output))}[/]: open it with Encoder.from_pretrained("{escape(str(output))}")')


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--weights {text}: give numbers with commas between them, such as 0.3,0.7") from None
