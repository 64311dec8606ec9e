"""Read the rows of one file, by its suffix: JSON Lines, plain text, CSV, TSV, JSON, Parquet, Arrow.

`read_file` raises at the first row that cannot be read; `records` yields a report of it, and the caller decides.
"""

from collections.abc import Iterator
from pathlib import Path

from embrew.data.arrow import read_arrow
from embrew.data.json_arrays import read_json
from embrew.data.lines import read_json_lines, read_text_lines
from embrew.data.record import Bad, Record, broken, stop
from embrew.data.tables import read_table
from embrew.files.reading import Place

SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz", ".parquet")
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".json", ".json.gz")
"""In a folder, such files are read if they are named after a split, or if no file has one of `SUFFIXES`."""


def read_file(path: Place) -> Iterator[Record]:
    """Yield the rows of one file, by its suffix. Blank lines are skipped; a line of a text file is `{"text": line}`.

    Raises:
        ValueError: something cannot be read.
    """
    for item in records(path):
        if isinstance(item, Bad):
            stop(item)
        yield item


def records(path: Place, *, max_bytes: int | None = None) -> Iterator[Record | Bad]:
    """Yield the rows of one file, and reports of what cannot be read.

    A report with `rest_lost` is the last item: a broken gzip, Parquet, JSON or CSV file, one that ends within a bad
    line, or one that has changed meanwhile.

    Args:
        path: the file.
        max_bytes: longer lines are bad, and are not held in memory.
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


def _state(path: Place) -> tuple[object, ...] | None:
    """Return what changes with a file's content or if it is replaced; None if it does not exist."""
    try:
        if not isinstance(path, Path):
            return path.stat()
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _by_suffix(path: Place, max_bytes: int | None) -> Iterator[Record | Bad]:
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
