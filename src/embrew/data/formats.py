"""Read the rows of one file, by its suffix: JSON Lines, plain text, CSV, TSV, JSON, Parquet, Arrow, Markdown, HTML.

`read_file` raises at the first row that cannot be read; `records` yields a report of it, and the caller decides. Rows
are read one by one, or in batches of Parquet and Arrow files; an array of a JSON file is read as a whole. Tables with
quotes are read twice: one rule for a whole table decides whether its quotes enclose cells, as pandas and Excel write
them. A quote opens a cell at its beginning and closes it at its end; inside, it stands twice. Such a cell may have
several lines. A quote anywhere else breaks the rule.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, NoReturn, cast

from embrew.data.documents import PROSE, read_prose
from embrew.files.checksums import check_listed
from embrew.files.reading import CONTENT, Place

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz", ".parquet")
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".json", ".json.gz")
"""In a folder, such files are read if they are named after a split, or if no file has one of `SUFFIXES`."""
GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
ENDS = "; the file ends here without a line break, so it may be truncated: copy it again, or end the line"
BLANK = " \t\r\n"  # white space of JSON
AGAIN = "repair the file, or write it again"
FORM = "a .json file holds an array of objects, or one object per line"
MAX_CELL = 1 << 30  # characters; Python's own limit is 131,072, less than some documents have
UTF16 = "holds a zero byte, as in UTF-16; convert to UTF-8"
SEP = re.compile(r'"?sep=([^"\r\n])"?[\r\n]*', re.IGNORECASE)
"""Excel's first line, which names the separator."""
INSIDE = '(?:[^"]++|"")*+'  # of a quoted cell
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
ARROW = b"ARROW1"  # begins an Arrow file, and no stream
BATCH = 1000  # rows of Parquet and Arrow files


Values = dict[str, Any]
"""A row: values by column."""


class Record(NamedTuple):
    """One row, its file, and its number; `unit` is what is counted: lines or rows."""

    values: Values
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

    A Markdown or HTML file is one row, see `embrew.data.documents`.

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


def named(values: Iterable[str], name: str) -> str | None:
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
        return _read_lines(path, max_bytes, lambda line: {"text": line.removesuffix("\n")}, any_end=True)
    if name.endswith((".csv", ".tsv")):
        return _read_table(path)
    if name.endswith(".json"):
        return _read_json(path, max_bytes)
    if path.name.endswith((".parquet", ".arrow")):
        return _read_arrow(path)
    if path.name.lower().endswith(PROSE):
        return _read_prose(path, max_bytes)
    suffixes = ", ".join((*SUFFIXES, *TABLES, ".arrow", *PROSE))
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


def _broken(path: Place, number: int, reason: str, *, unit: str = "line") -> Bad:
    """Return the report of a file that cannot be read after row `number`."""
    return Bad(str(path), number, f"{path}, after {unit} {number}", reason, rest_lost=True)


def _reason(error: Exception) -> str:
    """Return why a file or a row cannot be read, and what to do."""
    if isinstance(error, UnicodeDecodeError):
        return f"not valid UTF-8 ({error.reason}); convert to UTF-8"
    if isinstance(error, GZIP_ERRORS):
        return f"broken gzip file ({error}); copy or download it again"
    if isinstance(error, csv.Error):
        return f"not valid CSV ({error}); repair the line"
    return str(error)


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


def _read_lines(
    path: Place, max_bytes: int | None, parse: Callable[[str], Values], *, any_end: bool = False
) -> Iterator[Record | Bad]:
    """Yield a row for each non-blank line of a UTF-8 file; split at line feeds, with `any_end` at carriage returns too.

    A byte order mark at the beginning of any line is left out: concatenated files have some.
    """
    number, source = 0, str(path)
    try:
        with _open(path) as file:
            for number, raw in enumerate(_lines(file, max_bytes, any_end=any_end), start=1):
                if raw is None:
                    yield _bad(path, number, f"longer than {max_bytes:,} bytes; split the text, or leave it out")
                    continue
                try:
                    line = raw.removeprefix(codecs.BOM_UTF8).decode()
                    if 4 * line.count("\0") > len(line):  # a text may hold one
                        raise ValueError(UTF16)
                    if line.strip():
                        yield Record(parse(line), source, number, "line")
                except ValueError as error:
                    ends = not raw.endswith(b"\n")
                    yield _bad(path, number, _reason(error) + (ENDS if ends else ""), rest_lost=ends)
    except GZIP_ERRORS as error:
        yield _broken(path, number, _reason(error))


def _lines(file: BinaryIO, max_bytes: int | None, *, any_end: bool) -> Iterator[bytes | None]:
    """Yield the lines of a file; None for one that is too long, whose rest is skipped."""
    readline: Callable[[int], bytes] = file.readline
    if any_end:  # Latin-1 is one character per byte
        text = io.TextIOWrapper(file, encoding="latin-1", newline=None)
        readline = lambda size: text.readline(size).encode("latin-1")  # noqa: E731
    if max_bytes is None and not any_end:
        yield from file
        return
    while raw := readline(-1 if max_bytes is None else max_bytes + 1):
        if max_bytes is None or len(raw) <= max_bytes or raw.endswith(b"\n"):
            yield raw
            continue
        while (rest := readline(1 << 20)) and not rest.endswith(b"\n"):
            pass
        yield None


def parse_json(text: str, *, repair: str = "repair or remove the line") -> Any:
    """Return what a JSON text holds.

    Raises:
        ValueError: it is no valid JSON, is nested too deeply, or an object has a key twice; says what to do.
    """
    try:
        value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip(BLANK)))
        if rest := text[end:].lstrip(BLANK):
            raise json.JSONDecodeError("Extra data", text, len(text) - len(rest))
        return value
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error}); {repair}") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of some keys and values, as a hook of `json.loads`.

    Raises:
        ValueError: a key is there twice.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"an object has the key {_twice(name for name, _ in pairs)!r} twice; rename or remove one")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)  # `json.loads` with a hook makes one per call


def _twice(names: Iterable[str]) -> str | None:
    """Return the first name that stands there twice, or None."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _parse_object(text: str) -> Values:
    """Parse a JSON object.

    Raises:
        ValueError: the text is no valid JSON, or no object; says what to do.
    """
    return _checked_object(parse_json(text), escapes="\\u" in text)


def _checked_object(values: Any, *, escapes: bool) -> Values:
    """Return a parsed JSON object; with `escapes`, its text may hold half of a surrogate pair.

    Raises:
        ValueError: it is no object, or holds text that cannot be written as UTF-8.
    """
    if escapes:
        try:
            json.dumps(values, ensure_ascii=False).encode("utf-8")
        except RecursionError as error:
            raise ValueError("is nested too deeply; repair or remove it") from error
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
                for number, value in enumerate(parse_json(text, repair=AGAIN), start=1):
                    try:
                        yield Record(_checked_object(value, escapes="\\u" in text), str(path), number)
                    except ValueError as error:
                        yield _bad(path, number, str(error), unit="row")
                return
    except (*GZIP_ERRORS, ValueError) as error:
        yield _broken(path, number, _reason(error), unit="row")
        return
    for item in _read_lines(path, max_bytes, _parse_object):
        yield item._replace(reason=f"{item.reason}; {FORM}") if isinstance(item, Bad) else item


def _read_table(path: Place) -> Iterator[Record | Bad]:
    """Yield the rows under a header line; values are text, an empty cell is None. Columns without a name are left out.

    The separator is the one that Excel's first line `sep=;` names, or the one between the names of the header: commas,
    semicolons or tabs. Quotes follow the rule above; where they break it, tabs separate texts with quotes.
    """
    number = 1
    try:
        with io.TextIOWrapper(_open(path), encoding="utf-8-sig", newline="") as file:
            header, before = file.readline(), 0
            if named_separator := SEP.fullmatch(header):
                header, before = file.readline(), 1
            separator = named_separator[1] if named_separator else _separator(header, path)
            if "\0" in header:
                yield _bad(path, 1, UTF16, rest_lost=True)
                return
            finding = _finding(path, separator, header.count(separator) + 1, repr(_state(path)))
            refused = finding is not None and finding.is_refused(separator)
            lines = islice(chain([header], file), finding.line - 1 - before if finding and refused else None)
            unquoted = finding is not None and finding.kind == "broken" and not refused
            quoting: Literal[0, 3] = csv.QUOTE_NONE if unquoted else csv.QUOTE_MINIMAL
            csv.field_size_limit(MAX_CELL)
            reader = csv.reader(lines, delimiter=separator, strict=True, quoting=quoting)
            names = next(reader, [])
            twice = _twice(filter(None, names))
            if twice is not None:
                yield _broken(path, 1, f"the header has the column {twice!r} twice; rename or remove one")
                return
            for cells in filter(None, reader):
                number = reader.line_num + before
                if len(cells) != len(names):
                    more = "more" if len(cells) > len(names) else "fewer"
                    reason = f"{more} cells than the {len(names)} columns of the header; repair the line"
                    yield _bad(path, number, reason)
                    continue
                values = {name: cell or None for name, cell in zip(names, cells, strict=True) if name}
                yield Record(values, str(path), number, "line")
            if finding and refused:
                yield _bad(path, finding.line, _refusal(finding), rest_lost=True)
    except (*GZIP_ERRORS, UnicodeDecodeError, csv.Error) as error:
        yield _broken(path, number, _reason(error))


class Finding(NamedTuple):
    """What the quotes of a table are.

    Attributes:
        kind: `broken`: they break the rule; `rows`: they keep it, and a cell of several lines is as many whole rows
            if quotes have no meaning; `lines`: the same in a table of one column.
        line: number of the line.
        reason: description of the quote, for messages.
    """

    kind: Literal["broken", "rows", "lines"]
    line: int
    reason: str

    def is_refused(self, separator: str) -> bool:
        """Return whether the table is not read: with tabs, one that breaks the rule is read without quoting."""
        return self.kind == "rows" or (self.kind == "broken" and separator != "\t")


def check_quotes(lines: Iterable[str], separator: str, columns: int) -> Finding | None:
    """Return what is wrong with the quotes of a table, or doubtful; None: nothing.

    Args:
        lines: lines of the table, with their ends.
        separator: separator of cells.
        columns: number of columns.
    """
    edge = re.escape(separator)
    cell = rf'(?:"{INSIDE}"|[^"{edge}\r\n]*+)'
    complete = re.compile(rf"{cell}(?:{edge}{cell})*+[\r\n]*+")
    opened = re.compile(rf'(?:{cell}{edge})*+"{INSIDE}')
    doubtful: Finding | None = None
    start = number = 0  # the line in which an open cell begins; 0: none is open
    are_rows = True
    for number, line in enumerate(lines, start=1):
        if not start and '"' not in line:
            continue
        are_rows = are_rows and line.count(separator) == columns - 1
        if '"' not in line:
            continue
        text = f'"{line}' if start else line
        if complete.fullmatch(text):
            if start and are_rows and doubtful is None:
                what = f"a quoted cell goes on to line {number}"
                doubtful = Finding("rows" if columns > 1 else "lines", start, what)
            start, are_rows = 0, True
        elif opened.fullmatch(text):
            start = start or number
        else:
            if start:
                return Finding("broken", start, f"a quote opens a cell that is not closed at its end (line {number})")
            return Finding("broken", number, "a quote neither opens a cell nor closes it")
    if start:
        return Finding("broken", start, "a quote opens a cell that is never closed")
    return doubtful


@lru_cache(maxsize=64)  # read once, and logged once, as long as the file is the same
def _finding(path: Place, separator: str, columns: int, state: str) -> Finding | None:
    """Return what is wrong or doubtful about the quotes of a table; log it where the table is read all the same."""
    finding = None
    with suppress(*GZIP_ERRORS), io.TextIOWrapper(_open(path), encoding="latin-1", newline="") as file:
        first = file.readline().removeprefix(codecs.BOM_UTF8.decode("latin-1"))
        finding = check_quotes(chain([first], file), separator, columns if separator == "\t" else 0)
    if finding and finding.kind == "lines":
        logger.warning("%s, line %d: %s; if these are several texts, write them as JSON Lines", path, *finding[1:])
    elif finding and not finding.is_refused(separator):
        unquoted = "so the file is read without quoting: all quotes are part of the texts"
        logger.warning("%s, line %d: %s, %s", path, *finding[1:], unquoted)
    return finding


def _refusal(finding: Finding) -> str:
    """Return why a table is refused for its quotes, and what to do."""
    if finding.kind == "broken":
        remedy = 'write cells with quotes as pandas does, "5"" pipe", or the table as JSON Lines'
        return f"not valid CSV ({finding.reason}); {remedy}"
    return (
        f"{finding.reason}, and each of these lines is a whole row if quotes have no meaning; write the table as JSON "
        "Lines, which has one reading"
    )


def _separator(header: str, path: Place) -> str:
    """Return the separator that the header has most often outside quotes, by default that of the file's suffix."""
    default = "\t" if ".tsv" in path.suffixes else ","
    plain = re.sub(r'"[^"]*"', "", header)
    separator = max(SEPARATORS, key=lambda candidate: (plain.count(candidate), candidate == default))
    if separator != default:
        logger.info("%s: columns are separated by %s, as in its header line", path, SEPARATORS[separator])
    return separator


def _read_prose(path: Place, max_bytes: int | None) -> Iterator[Record | Bad]:
    """Yield the one row of a Markdown or HTML file; none if it has no text."""
    if max_bytes is not None and path.stat().st_size > max_bytes:
        yield _bad(path, 1, f"longer than {max_bytes:,} bytes; split the text, or leave it out", unit="row")
        return
    try:
        values = read_prose(path)
    except ValueError as error:
        yield _bad(path, 1, str(error), unit="row")
        return
    if values["text"].strip():
        yield Record(values, str(path), 1)


def _read_arrow(path: Place) -> Iterator[Record | Bad]:
    """Yield the rows of a Parquet file or of an Arrow stream or file, by its suffix."""
    kind = "Parquet" if path.name.endswith(".parquet") else "Arrow"
    number, failed = 0, set[str]()
    try:
        for batch in _parquet_batches(path) if kind == "Parquet" else _arrow_batches(path):
            twice = _twice(batch.schema.names)
            if twice is not None:
                yield _broken(path, 0, f"the schema has the column {twice!r} twice; rename or remove one", unit="row")
                return
            named_columns = zip(batch.schema.names, batch.columns, strict=True)
            columns = {name: _values(column, name, path, failed) for name, column in named_columns}
            for i in range(len(batch)):
                number += 1
                yield Record({name: values[i] for name, values in columns.items()}, str(path), number)
    except (ConnectionError, PermissionError):
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        reason = " ".join(str(error).split())
        yield _broken(path, number, f"broken {kind} file ({reason}); write it again", unit="row")


def _values(column: pa.Array, name: str, path: Place, failed: set[str]) -> list[Any]:
    """Return the values of a column; one without a Python value, such as the year 10000, is left as pyarrow's scalar.

    So a column that is not used stops nothing; of one that is used, such a value is none of the type that is needed.
    """
    try:
        return cast(list[Any], column.to_pylist())
    except (*CONTENT, NotImplementedError) as error:
        if name not in failed:
            failed.add(name)
            logger.warning("%s: column %r has values that cannot be converted (%s)", path, name, error)
    values = list(column)
    for i, scalar in enumerate(values):
        with suppress(*CONTENT, NotImplementedError):
            values[i] = scalar.as_py()
    return values


def _parquet_batches(path: Place) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a Parquet file; pages are compared with checksums, if the writer stored them."""
    import pyarrow.parquet as pq

    with path.open("rb") as opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
        yield from file.iter_batches(batch_size=BATCH)


def _arrow_batches(path: Place) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow stream, or of an Arrow (Feather) file, by its first bytes."""
    import pyarrow as pa

    with path.open("rb") as opened:
        is_file = opened.read(len(ARROW)) == ARROW
    with pa.PythonFile(path.open("rb")) as file:
        if is_file:
            with pa.ipc.open_file(file) as reader:
                yield from _small(map(reader.get_batch, range(reader.num_record_batches)))
        else:
            with pa.ipc.open_stream(file) as stream:
                yield from _small(stream)


def _small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches, validated, in parts of `BATCH` rows."""
    for batch in batches:
        batch.validate(full=True)
        for start in range(0, len(batch), BATCH):
            yield batch.slice(start, BATCH)
