"""Rows of one file, by its suffix: JSON Lines, plain text, CSV, JSON, Parquet, Arrow.

`read_file` is strict: a row that cannot be read stops the run with the file, the line and what to do. `records` gives
what is bad too, and leaves it to the caller.
"""

from collections.abc import Iterator
from pathlib import Path

from embrew.data.arrow import read_arrow
from embrew.data.json_arrays import read_json
from embrew.data.lines import read_json_lines, read_text_lines
from embrew.data.record import Bad, Record, broken, stop
from embrew.data.tables import read_table

SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz", ".parquet")
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".json", ".json.gz")
"""Of a folder, such a file is read where its name is that of a split, or where no file is of `SUFFIXES`."""


def read_file(path: Path) -> Iterator[Record]:
    """Rows of one file, by its suffix. Blank lines hold no row; a line of a text file becomes `{"text": line}`.

    Raises:
        ValueError: something cannot be read.
    """
    for item in records(path):
        if isinstance(item, Bad):
            stop(item)
        yield item


def records(path: Path, *, max_bytes: int | None = None) -> Iterator[Record | Bad]:
    """Rows of one file, and in between what cannot be read.

    After something with `rest_lost` (a broken gzip, Parquet, JSON or CSV file, one that ends within a bad line or
    changed meanwhile) there is nothing more.

    Args:
        path: the file.
        max_bytes: a longer line is bad, and is not held in memory.
    """
    last, unit, before = 0, "line", _state(path)
    for item in _by_suffix(path, max_bytes):
        last = item.number
        yield item
        if isinstance(item, Bad):
            if item.rest_lost:
                return
        else:
            unit = item.unit
    if _state(path) != before:
        reason = "changed or was replaced while it was read; wait until it is written, then read it again"
        yield broken(path, last, reason, unit=unit)


def _state(path: Path) -> tuple[int, ...] | None:
    """What changes with a file's content or with the file behind a name; None where it is gone."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _by_suffix(path: Path, max_bytes: int | None) -> Iterator[Record | Bad]:
    name = path.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        return read_json_lines(path, max_bytes)
    if name.endswith(".txt"):
        return read_text_lines(path, max_bytes)
    if name.endswith((".csv", ".tsv")):
        return read_table(path)
    if name.endswith(".json"):
        return read_json(path, max_bytes)
    if path.name.endswith((".parquet", ".arrow")):
        return read_arrow(path)
    known = ", ".join((*SUFFIXES, *TABLES, ".arrow"))
    raise ValueError(f"{path}: cannot read this kind of file; write it as one of {known}")
