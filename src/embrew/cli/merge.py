"""`embrew merge`: merge adapters into the base model. `embrew average`: average encoders of one base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embrew.cli.arguments import Dtype, Output, Verify
from embrew.cli.console import loading, print_line
from embrew.cli.options import options_of


def merge(
    model: Path, folder: Path, *, dtype: Dtype = "auto", overwrite: bool = False, verify: Verify = "full"
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
    _show(folder)


@options_of("embrew.merging:average", "method", "dev", "overwrite")
def average(
    models: list[Path],
    *,
    output: Output,
    weights: list[str] | None = None,
    verify: Verify = "full",
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
    _show(output)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--weights {text}: give numbers with commas between them, such as 0.3,0.7") from None


def _show(folder: Path) -> None:
    print_line((str(folder), "bold"), f': open it with Encoder.from_pretrained("{folder}")')
