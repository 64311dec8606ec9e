"""Read the rows of one file, by its suffix: JSON Lines, plain text, CSV, TSV, JSON, Parquet, Arrow.

`read_file` raises at the first row that cannot be read; `records` yields a report of it, and the caller decides. Rows
are read one by one, or in batches of Parquet and Arrow files; an array of a JSON file is read as a whole.
"""

import codecs
import csv
import gzip
import io
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

from embrew.files.checksums import check_listed
from embrew.files.reading import Place

logger = logging.getLogger(__name__)

SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz", ".parquet")
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".json", ".json.gz")
"""In a folder, such files are read if they are named after a split, or if no file has one of `SUFFIXES`."""
GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
ENDS = "; the file ends here without a line break, so it may be truncated: copy it again, or end the line"
FORM = "a .json file holds an array of objects, or one object per line"
MAX_CELL = 1 << 30  # characters; Python's own limit is 131,072, less than some documents have
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
BATCH = 1000  # rows of Parquet and Arrow files


class Record(NamedTuple):
    """One row, its file, and its number; `unit` is what is counted: lines or rows."""

    values: dict[str, Any]
    source: str
    number: int
    unit: str = "row"

    @property
    def where(self) -> str:
        """The row's position, for messages: `train.jsonl.gz, line 3`."""
        return f"{self.source}, {self.unit} {self.number}"

    def get(self, name: str) -> Any:
        """Return the value of a column (see `named`), or None where there is no such column."""
        try:
            column = named(self.values, name)
        except ValueError as error:
            raise ValueError(f"{self.where}: {error}") from error
        return None if column is None else self.values[column]


class Bad(NamedTuple):
    """Report of a row or file that cannot be read.

    Attributes:
        source: the file.
        number: the line or row, or the last one before it; 0 for the file itself.
        where: file and number, for messages.
        reason: why, and what to do.
        rest_lost: the file itself is broken, and an unknown number of rows follows that cannot be read.
    """

    source: str
    number: int
    where: str
    reason: str
    rest_lost: bool = False

    def stop(self) -> NoReturn:
        """Raise the report as an error.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{self.where}: {self.reason}")


def read_file(path: Place) -> Iterator[Record]:
    """Yield the rows of one file, by its suffix. Blank lines are skipped; a line of a text file is `{"text": line}`.

    Raises:
        ValueError: something cannot be read.
    """
    for item in records(path):
        if isinstance(item, Bad):
            item.stop()
        yield item


def records(path: Place, *, max_bytes: int | None = None) -> Iterator[Record | Bad]:
    """Yield the rows of one file, and reports of what cannot be read.

    A report with `rest_lost` is the last item: a broken gzip, Parquet, JSON or CSV file, one that ends within a bad
    line, or one that has changed meanwhile.

    Args:
        path: the file.
        max_bytes: longer lines are bad, and are not held in memory.
    """
    if isinstance(path, Path):
        check_listed(path)
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
        yield _broken(path, last, reason, unit=unit)


def same_name(columns: Iterable[str], name: str) -> list[str]:
    """Return the columns with this name; upper and lower case and white space at the ends do not count."""
    lower = name.lower()
    return [column for column in columns if column == name or column.strip().lower() == lower]


def named(values: Mapping[str, Any], name: str) -> str | None:
    """Return the column with this name (see `same_name`), or None.

    Raises:
        ValueError: several columns have it.
    """
    columns = same_name(values, name)
    if len(columns) > 1:
        raise ValueError(f"the columns {' and '.join(map(repr, columns))} could both be {name!r}; rename or remove one")
    return columns[0] if columns else None


def _by_suffix(path: Place, max_bytes: int | None) -> Iterator[Record | Bad]:
    name = path.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        return _read_lines(path, max_bytes, _parse_object)
    if name.endswith(".txt"):
        return _read_lines(path, max_bytes, lambda line: {"text": line.removesuffix("\n").removesuffix("\r")})
    if name.endswith((".csv", ".tsv")):
        return _read_table(path)
    if name.endswith(".json"):
        return _read_json(path, max_bytes)
    if path.name.endswith((".parquet", ".arrow")):
        return _read_arrow(path)
    suffixes = ", ".join((*SUFFIXES, *TABLES, ".arrow"))
    raise ValueError(f"{path}: cannot read this kind of file; write it as one of {suffixes}")


def _state(path: Place) -> tuple[object, ...] | None:
    """Return what changes with a file's content or if it is replaced; None if it does not exist."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns) if isinstance(path, Path) else about


def _bad(path: Place, number: int, reason: str, *, unit: str = "line", rest_lost: bool = False) -> Bad:
    """Return the report of one row that cannot be read."""
    return Bad(str(path), number, f"{path}, {unit} {number}", reason, rest_lost)


def _broken(path: Place, number: int, reason: str | Exception, *, unit: str = "line") -> Bad:
    """Return the report of a file that cannot be read after row `number`."""
    if isinstance(reason, UnicodeDecodeError):
        reason = f"not valid UTF-8 ({reason.reason}); convert to UTF-8"
    elif isinstance(reason, Exception):
        reason = f"broken gzip file ({reason}); copy or download it again"
    return Bad(str(path), number, f"{path}, after {unit} {number}", reason, rest_lost=True)


def _open(path: Place) -> BinaryIO:
    """Open a file, gzip'd or not.

    Raises:
        EOFError: a gzip file without a header.
    """
    if not path.name.endswith(".gz"):
        return path.open("rb")
    if path.stat().st_size == 0:
        raise EOFError("it is empty, without a gzip header")  # Python reads it as a file without lines
    return cast(BinaryIO, gzip.open(path if isinstance(path, Path) else path.open("rb")))


def _read_lines(path: Place, max_bytes: int | None, parse: Callable[[str], dict[str, Any]]) -> Iterator[Record | Bad]:
    """Yield a row for each non-blank line of a UTF-8 file; split at line feeds only."""
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file if max_bytes is None else _bounded(file, max_bytes), start=1):
                if raw is None:
                    yield _bad(path, number, f"longer than {max_bytes:,} bytes; split the text, or leave it out")
                    continue
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                    if line.strip():
                        yield Record(parse(line), str(path), number, "line")
                except ValueError as error:
                    reason = str(error)
                    if isinstance(error, UnicodeDecodeError):
                        reason = f"not valid UTF-8 ({error.reason}); convert to UTF-8"
                    ends = not raw.endswith(b"\n")
                    yield _bad(path, number, reason + (ENDS if ends else ""), rest_lost=ends)
    except GZIP_ERRORS as error:
        yield _broken(path, number, error)


def _bounded(file: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """Yield the lines of a file; None for one that is too long, whose rest is skipped."""
    while raw := file.readline(max_bytes + 1):
        if len(raw) <= max_bytes or raw.endswith(b"\n"):
            yield raw
            continue
        while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
            pass
        yield None


def _parse_object(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: the text is no valid JSON, or no object; says what to do.
    """
    try:
        values = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error}); repair or remove the line") from error
    return _checked_object(values, escapes="\\u" in text)


def _checked_object(values: Any, *, escapes: bool) -> dict[str, Any]:
    """Return a parsed JSON object; with `escapes`, its text may hold half of a surrogate pair.

    Raises:
        ValueError: it is no object, or holds text that cannot be written as UTF-8.
    """
    if escapes:
        try:
            json.dumps(values, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError("holds a lone surrogate (\\ud800..\\udfff); repair or remove it") from error
    if not isinstance(values, dict):
        raise ValueError(f'holds a {type(values).__name__}, not an object; write {{"column": value}}')
    return values


def _read_json(path: Place, max_bytes: int | None) -> Iterator[Record | Bad]:
    """Yield the rows of a JSON file; one that does not begin with `[` is read as JSON Lines."""
    number = 0
    try:
        with _open(path) as file:
            start = file.read(1 << 16)
            if start.lstrip(codecs.BOM_UTF8 + b" \t\r\n").startswith(b"["):
                text = (start + file.read()).decode("utf-8-sig")
                for number, value in enumerate(json.loads(text), start=1):
                    try:
                        yield Record(_checked_object(value, escapes="\\u" in text), str(path), number)
                    except ValueError as error:
                        yield _bad(path, number, str(error), unit="row")
                return
    except (*GZIP_ERRORS, UnicodeDecodeError) as error:
        yield _broken(path, number, error, unit="row")
        return
    except (ValueError, RecursionError) as error:
        yield _broken(path, number, f"not valid JSON ({error}); repair the file, or write it again", unit="row")
        return
    for item in _read_lines(path, max_bytes, _parse_object):
        yield item._replace(reason=f"{item.reason}; {FORM}") if isinstance(item, Bad) else item


def _read_table(path: Place) -> Iterator[Record | Bad]:
    """Yield the rows under a header line; values are text, an empty cell is None. Columns without a name are left out.

    The separator is the one between the names of the header: commas, semicolons or tabs.
    """
    number = 1
    try:
        with io.TextIOWrapper(_open(path), encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            csv.field_size_limit(MAX_CELL)
            reader = csv.DictReader(chain([header], file), delimiter=_separator(header, path), strict=True)
            names = list(reader.fieldnames or ())
            twice = next((name for name in names if name and names.count(name) > 1), None)
            if twice is not None:
                yield _broken(path, 1, f"the header has the column {twice!r} twice; rename or remove one")
                return
            for values in reader:
                number = reader.line_num
                if None in values or None in values.values():
                    more = "more" if None in values else "fewer"
                    reason = f"{more} cells than the {len(names)} columns of the header; repair the line"
                    yield _bad(path, number, reason)
                    continue
                yield Record({name: value or None for name, value in values.items() if name}, str(path), number, "line")
    except (*GZIP_ERRORS, UnicodeDecodeError) as error:
        yield _broken(path, number, error)
    except csv.Error as error:
        yield _broken(path, number, f"not valid CSV ({error}); repair the line")


def _separator(header: str, path: Place) -> str:
    """Return the separator that the header has most often outside quotes, by default that of the file's suffix."""
    default = "\t" if ".tsv" in path.suffixes else ","
    plain = re.sub(r'"[^"]*"', "", header)
    separator = max(SEPARATORS, key=lambda one: (plain.count(one), one == default))
    if separator != default:
        logger.info("%s: columns are separated by %s, as in its header line", path, SEPARATORS[separator])
    return separator


def _read_arrow(path: Place) -> Iterator[Record | Bad]:
    """Yield the rows of a Parquet file or of an Arrow stream, by its suffix."""
    kind = "Parquet" if path.name.endswith(".parquet") else "Arrow"
    number = 0
    try:
        for batch in _parquet_batches(path) if kind == "Parquet" else _arrow_batches(path):
            for values in batch.to_pylist():
                number += 1
                yield Record(values, str(path), number)
    except (ConnectionError, PermissionError):
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        reason = " ".join(str(error).split())
        yield _broken(path, number, f"broken {kind} file ({reason}); write it again", unit="row")


def _parquet_batches(path: Place) -> Iterator[Any]:
    """Yield the batches of a Parquet file; pages are compared with checksums, if the writer stored them."""
    import pyarrow.parquet as pq

    with path.open("rb") as opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
        yield from file.iter_batches(batch_size=BATCH)


def _arrow_batches(path: Place) -> Iterator[Any]:
    import pyarrow as pa

    with pa.PythonFile(path.open("rb")) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            batch.validate(full=True)
            for start in range(0, len(batch), BATCH):
                yield batch.slice(start, BATCH)
