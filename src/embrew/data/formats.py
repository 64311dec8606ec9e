"""Rows of one file, by its suffix: JSON Lines, plain text, CSV, Parquet.

`read_file` is strict: a row that cannot be read stops the run with the file, the line and what to do. `records` gives
what is bad too, and leaves it to the caller.
"""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz", ".parquet")
_LINES = SUFFIXES[:4]
ENDS = "; the file ends here without a line break, so it may be truncated: copy it again, or end the line"


class Record(NamedTuple):
    """One row and where it came from."""

    values: dict[str, Any]
    source: str
    number: int

    @property
    def where(self) -> str:
        """The row's place, for messages: `train.jsonl.gz, line 3`."""
        return f"{self.source}, {'line' if self.source.endswith((*_LINES, '.csv')) else 'row'} {self.number}"


class Bad(NamedTuple):
    """Something that cannot be read.

    Attributes:
        source: the file.
        number: the line or row, or the last one before it (0: the file itself).
        where: the same in words, for messages.
        reason: why, and what to do.
        rest_lost: the file itself is broken: what follows cannot be read, and nothing says how much that is.
    """

    source: str
    number: int
    where: str
    reason: str
    rest_lost: bool = False


def stop(bad: Bad) -> NoReturn:
    """Refuse what cannot be read.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{bad.where}: {bad.reason}")


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

    After something with `rest_lost` (a broken gzip, Parquet or CSV file, one that ends within a bad line or changed
    meanwhile) there is nothing more.

    Args:
        path: the file.
        max_bytes: a longer line is bad, and is not held in memory.
    """
    last, before = 0, _state(path)
    for item in _records(path, max_bytes):
        last = item.number
        yield item
        if isinstance(item, Bad) and item.rest_lost:
            return
    if _state(path) != before:
        reason = "changed or was replaced while it was read; wait until it is written, then read it again"
        yield Bad(str(path), last, f"{path}, after {_unit(path)} {last}", reason, rest_lost=True)


def _state(path: Path) -> tuple[int, ...] | None:
    """What changes with a file's content or with the file behind a name; None where it is gone."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _unit(path: Path) -> str:
    return "row" if path.name.endswith(".parquet") else "line"


def _records(path: Path, max_bytes: int | None) -> Iterator[Record | Bad]:
    if path.name.endswith(".parquet"):
        yield from _read_parquet(path)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        for item in _lines(path, max_bytes):
            if isinstance(item, Bad):
                yield item
                continue
            number, line = item
            try:
                values = _parse(line)
            except ValueError as error:
                ends = not line.endswith("\n")
                yield Bad(str(path), number, f"{path}, line {number}", f"{error}{ENDS if ends else ''}", ends)
            else:
                yield Record(values, str(path), number)
    elif path.name.endswith((".txt", ".txt.gz")):
        for item in _lines(path, max_bytes):
            if isinstance(item, Bad):
                yield item
                continue
            number, line = item
            yield Record({"text": line.removesuffix("\n").removesuffix("\r")}, str(path), number)
    elif path.name.endswith(".csv"):
        yield from _read_csv(path)
    else:
        known = ", ".join((*SUFFIXES, ".csv"))
        raise ValueError(f"{path}: cannot read this kind of file; write it as one of {known}")


def _lines(path: Path, max_bytes: int | None) -> Iterator[tuple[int, str] | Bad]:
    """Numbered non-blank lines of a UTF-8 file, split at line feeds only."""
    number = 0
    try:
        if path.name.endswith(".gz") and path.stat().st_size == 0:
            raise EOFError("it is empty, without a gzip header")  # Python reads it as a file of no lines
        with gzip.open(path) if path.name.endswith(".gz") else open(path, "rb") as file:
            for number, raw in enumerate(file if max_bytes is None else _bounded(file, max_bytes), start=1):
                where = f"{path}, line {number}"
                if raw is None:
                    reason = f"longer than {max_bytes:,} bytes; split the text, or leave it out"
                    yield Bad(str(path), number, where, reason)
                    continue
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    ends = not raw.endswith(b"\n")
                    reason = f"not valid UTF-8 ({error.reason}); convert to UTF-8{ENDS if ends else ''}"
                    yield Bad(str(path), number, where, reason, rest_lost=ends)
                    continue
                if line.strip():
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = f"broken gzip file ({error}); copy or download it again"
        yield Bad(str(path), number, f"{path}, after line {number}", reason, rest_lost=True)


def _bounded(file: Any, max_bytes: int) -> Iterator[bytes | None]:
    """Lines of a file; None in place of one that is too long, whose rest is skipped."""
    while raw := file.readline(max_bytes + 1):
        if len(raw) <= max_bytes or raw.endswith(b"\n"):
            yield raw
            continue
        while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
            pass
        yield None


def _parse(line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
        if "\\u" in line:  # an escaped half of a surrogate pair parses, but is no text that can be written again
            json.dumps(values, ensure_ascii=False).encode("utf-8")
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error}); mend or remove the line") from error
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate (\\ud800..\\udfff); mend or remove the line") from error
    if not isinstance(values, dict):
        raise ValueError(f'holds a {type(values).__name__}, not an object; write {{"column": value}}')
    return values


def _read_csv(path: Path) -> Iterator[Record | Bad]:
    """Rows under a header line, all values text; an empty cell is None. Folders are not searched for such files."""
    number = 1
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            for values in reader:
                number = reader.line_num
                if "" in values or None in values.values():
                    more = "more" if "" in values else "fewer"
                    reason = (
                        f"{more} cells than the {len(reader.fieldnames or ())} columns of the header; mend the line"
                    )
                    yield Bad(str(path), number, f"{path}, line {number}", reason)
                    continue
                yield Record({name: value or None for name, value in values.items()}, str(path), number)
    except UnicodeDecodeError as error:
        reason = f"not valid UTF-8 ({error.reason}); convert to UTF-8"
        yield Bad(str(path), number, f"{path}, after line {number}", reason, rest_lost=True)
    except csv.Error as error:
        reason = f"not valid CSV ({error}); mend the line"
        yield Bad(str(path), number, f"{path}, after line {number}", reason, rest_lost=True)


def _read_parquet(path: Path) -> Iterator[Record | Bad]:
    for number, values in _parquet_rows(path):
        if isinstance(values, dict):
            yield Record(values, str(path), number)
        elif isinstance(values, UnicodeDecodeError):
            reason = f"not valid UTF-8 ({values.reason}); write the file again"
            yield Bad(str(path), number, f"{path}, row {number}", reason)
        else:
            reason = f"broken Parquet file ({_one_line(values)}); write it again"
            yield Bad(str(path), number, f"{path}, after row {number}", reason, rest_lost=True)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | OSError | ValueError]]:
    """Numbered rows; in place of one that is no UTF-8, and of all that follows a break, the error."""
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:  # where the writer left checksums
            for batch in file.iter_batches(batch_size=1000):
                try:
                    rows = batch.to_pylist()
                except UnicodeDecodeError:
                    rows = [_arrow_row(batch, i) for i in range(len(batch))]
                for values in rows:
                    number += 1
                    yield number, values
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        yield number, error


def _arrow_row(batch: Any, i: int) -> dict[str, Any] | UnicodeDecodeError:
    try:
        row: dict[str, Any] = batch.slice(i, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        return error
    return row
