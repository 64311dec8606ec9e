"""What the analyses share: the loop over models, the table, and the result file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from embrew.cli.console import loading, out, print_json, wants_json


class Row(NamedTuple):
    """One row of an analysis: cells of the table, figures for the result file, and data of the plot."""

    cells: Iterable[str | Text]
    figures: dict[str, Any]
    drawn: Any


def compare(
    models: Sequence[str],
    examine: Callable[[str, Any], Iterable[Row]],
    *,
    columns: Sequence[str],
    title: str | None = None,
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Examine models one after the other and print a table.

    Args:
        models: names, as `open_model` takes them.
        examine: from a model's name and encoder to rows of the table.
        columns: heads of the table, after the model.
        title: of the table.

    Returns:
        For each row, the entry of the result file, and the data of the plot.
    """
    shown, entries, drawn = new_table(*columns, title=title), [], []
    for name in models:
        with opened(name) as encoder:
            for row in examine(name, encoder):
                shown.add_row(Text(name), *row.cells)
                entries.append({**model_entry(name, encoder), **row.figures})
                drawn.append(row.drawn)
    out().print(shown)
    return entries, drawn


@contextmanager
def opened(name: str, opener: Callable[[str], Any] | None = None) -> Iterator[Any]:
    """Open a model; errors in the block begin with its name."""
    loading(name)
    from embrew.opening import open_model

    encoder = (opener or open_model)(name)
    try:
        yield encoder
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def encode_settings(batch_tokens: int | None, **settings: Any) -> dict[str, Any]:
    """Return keywords for functions that encode texts: the batch size, and progress."""
    return {"batch_tokens": batch_tokens, "show_progress_bar": True, **settings}


def new_table(*columns: str, first: str = "model", title: str | None = None) -> Table:
    """Return an empty table of numbers whose first column holds names."""
    shown = Table(box=None, pad_edge=False, title=title)
    shown.add_column(first, style="bold")
    for column in columns:
        shown.add_column(column, justify="right")
    return shown


def model_entry(name: str, encoder: Any) -> dict[str, Any]:
    """Return the entry by which a result file names a model."""
    from embrew.text_encoder.hashes import model_hash

    return {"model": name, "model_hash": model_hash(encoder)}


def write(output: Path | None, analysis: str, entries: Sequence[dict[str, Any]], **settings: Any) -> None:
    """Write the figures of all models to `output`, if given, and to stdout, if --json is given."""
    if output is None and not wants_json():
        return
    from embrew.files.writing import write_json
    from embrew.text_encoder.provenance import versions

    document = {"analysis": analysis, **settings, "versions": versions(), "models": list(entries)}
    if output is not None:
        write_json(output, document)
    print_json(document)
