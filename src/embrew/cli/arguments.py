"""Arguments that several verbs take."""

from __future__ import annotations

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
