"""Arguments that several commands take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from embrew.cli import completion

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Override a setting of the recipe, e.g. encoder.max_length.query=256."),
]
RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", autocompletion=completion.recipes, help="A shipped recipe's name or a YAML file."),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=completion.recipes,
        help="Folder of a trained encoder or Sentence-Transformers model, Hub id, or recipe.",
    ),
]


Count = Annotated[int | None, typer.Option(min=1)]
Output = Annotated[Path, typer.Option("--output", "-o")]
OptionalOutput = Annotated[Path | None, typer.Option("--output", "-o")]
Data = Annotated[list[str] | None, typer.Option("--data", "-d")]
Suite = Annotated[str | None, typer.Option(metavar="SUITE", autocompletion=completion.suites)]

Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OURS=THEIRS",
        help="Name a column of the file: question, answer, choices, negatives or source = its name. Repeatable.",
    ),
]


Dtype = Literal["auto", "float32", "bfloat16"]
ModelDtype = Annotated[Dtype, typer.Option(help="Data type of the model; auto = the saved one, or that of its recipe.")]


Verify = Annotated[
    Literal["fast", "full", "off"],
    typer.Option(help="Verify what is saved: fast = reopen it in this process, full = load it in a fresh process."),
]
Pooling = Literal["last", "mean", "weighted_mean", "echo", "prompteol"]
ModelPooling = Annotated[
    Pooling | None,
    typer.Option(
        help="Pooling of a language model that was not trained as an encoder: its last token, the mean of its tokens, "
        "their mean weighted by position, the mean of Echo's second copy, or the last token of PromptEOL's prompt. "
        "Other models have their own.",
    ),
]


ModelBackend = Annotated[
    Literal["torch", "openvino"],
    typer.Option(
        help="Software that computes vectors. openvino (CPU) opens an export for OpenVINO, or converts MODEL in memory "
        "and compares both; --dtype is then that of the arithmetic.",
    ),
]


def columns_of(column: Sequence[str] | None) -> dict[str, str]:
    """Return `OURS=THEIRS` options as a mapping."""
    columns = dict(part.split("=", 1) for part in column or () if "=" in part)
    if len(columns) < len(column or ()):
        raise ValueError(f"--column {' '.join(column or ())}: give OURS=THEIRS, once each, e.g. question=title")
    return columns


def read_numbers(text: str) -> list[int]:
    """Parse numbers such as `4,8,12`, `1-6,12` or `0..8`.

    >>> read_numbers("1-3,6"), read_numbers("0..2")
    ([1, 2, 3, 6], [0, 1, 2])
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:(?:-|\.\.)(\d+))?", part.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a list of numbers; write 4,8,12, 1-6,12 or 0..8")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers
