"""`embrew average`: average encoders of one base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from embrew.cli.arguments import Output, Quiet, Verify
from embrew.cli.console import loading, out
from embrew.cli.options import options_of


@options_of("embrew.merging:average", "method", "dev", "overwrite")
def average(
    models: list[Path],
    *,
    output: Output,
    weights: list[str] | None = None,
    verify: Verify = "full",
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Average encoders that were trained from one base model.

    Of LoRAs, the result is one LoRA, whose rank is the sum of theirs.

    Args:
        models (MODEL...): Folders of encoders or of training runs, two or more.
        output (DIR): Folder to write.
        method: How the changes of each weight are averaged; slerp, along the arc between those of two.
        weights (W,W,...): Weight of each MODEL, with the sum 1; equal by default. Repeatable with --dev.
        dev (DATA): Data folder or file to choose the weights on, by its dev split; repeatable. Without --weights: each
            MODEL alone, and equal weights of the best two, three, ...
        overwrite: Replace DIR if it exists.
    """
    mixtures = [_numbers(text) for text in weights or ()]
    loading(", ".join(map(str, models)))
    from embrew.merging import average as write

    write(models, output, mixtures=mixtures, verify=verify, **options)
    out().print(f'[bold]{escape(str(output))}[/]: open it with Encoder.from_pretrained("{escape(str(output))}")')


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--weights {text}: give numbers with commas between them, such as 0.3,0.7") from None
