"""Arguments that several verbs take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings of the recipe, e.g. encoder.max_length.query=256."),
]
Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Trained folder, Sentence-Transformers folder, Hub id, or recipe."),
]


class Dtype(StrEnum):
    """What a model computes in."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


Computes = Annotated[
    Dtype, typer.Option("--dtype", help="What the model computes in; auto is what it was saved in, or its recipe says.")
]
