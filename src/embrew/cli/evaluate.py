"""`embrew evaluate`: score a model on data folders."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from embrew.cli.arguments import Model, Overrides
from embrew.cli.console import out

if TYPE_CHECKING:
    from embrew.evaluation import Result


class Kind(StrEnum):
    """What a data folder holds."""

    STS = "sts"
    RETRIEVAL = "retrieval"


class StsProtocol(StrEnum):
    """How the subsets of an STS set become one score."""

    ALL = "all"
    PER_SUBSET = "per-subset"


def evaluate(
    model: Model,
    data: Annotated[list[str], typer.Option("--data", "-d", metavar="DIR", help="Data folder; may be given again.")],
    overrides: Overrides = None,
    split: Annotated[str | None, typer.Option(help="Split to score; by default test, else dev.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="What the data is, where its columns should not decide.")] = None,
    sts_protocol: Annotated[
        StsProtocol, typer.Option(help="STS of several subsets: all pairs together, or the mean of the subsets.")
    ] = StsProtocol.ALL,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write results here.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Padded tokens a batch.")] = None,
) -> None:
    """Score a model, or an untrained recipe, on data folders."""
    from embrew.evaluation.tasks import find_task

    chosen: Any = kind and kind.value
    for folder in data:  # before a model is opened
        find_task(folder, split=split, kind=chosen)
    from embrew import build, evaluation

    encoder: Any = build.open_model(model, overrides or ())
    results = evaluation.evaluate(
        encoder,
        data,
        output_dir=output,
        split=split,
        kind=chosen,
        sts_protocol="all" if sts_protocol is StsProtocol.ALL else "per-subset",
        batch_tokens=batch_tokens,
        show_progress_bar=out().is_terminal,
    )
    out().print(results_table(results))


def results_table(results: Sequence[Result]) -> Table:
    """A row a task, scores times 100, and their mean where there are several."""
    from embrew.evaluation import table

    header, rows = table(results)
    shown = Table(box=None, pad_edge=False)
    for name in header:
        bold, number = name in ("task", "score"), name in ("score", "seconds")
        shown.add_column(name, style="bold" if bold else None, justify="right" if number else "left", no_wrap=bold)
    for row in rows:
        shown.add_row(*row)
    return shown
