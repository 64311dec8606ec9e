"""Read files with one row per line: JSON Lines and plain text, gzip'd or not."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from embrew.data.record import Bad, Record, bad, broken
from embrew.files.reading import Place

GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
ENDS = "; the file ends here without a line break, so it may be truncated: copy it again, or end the line"


def open_bytes(path: Place) -> BinaryIO:
    """Open a file, gzip'd or not.

    Raises:
        EOFError: a gzip file without a header.
    """
    if not path.name.endswith(".gz"):
        return path.open("rb")
    if path.stat().st_size == 0:
        raise EOFError("it is empty, without a gzip header")  # Python reads it as a file without lines
    return cast(BinaryIO, gzip.open(path if isinstance(path, Path) else path.open("rb")))


def broken_gzip(path: Place, number: int, error: Exception, *, unit: str = "line") -> Bad:
    """Return the report of a gzip file that cannot be read to its end."""
    return broken(path, number, f"broken gzip file ({error}); copy or download it again", unit=unit)


def read_json_lines(path: Place, max_bytes: int | None) -> Iterator[Record | Bad]:
    """Yield the rows of a file with one JSON object per line."""
    return _rows(path, max_bytes, parse_object)


def read_text_lines(path: Place, max_bytes: int | None) -> Iterator[Record | Bad]:
    """Yield the lines of a text file as rows `{"text": line}`."""
    return _rows(path, max_bytes, lambda line: {"text": line.removesuffix("\n").removesuffix("\r")})


def parse_object(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: the text is no valid JSON, or no object; says what to do.
    """
    try:
        values = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error}); repair or remove the line") from error
    return checked_object(values, escapes="\\u" in text)


def checked_object(values: Any, *, escapes: bool) -> dict[str, Any]:
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


def _rows(path: Place, max_bytes: int | None, parse: Callable[[str], dict[str, Any]]) -> Iterator[Record | Bad]:
    for item in _lines(path, max_bytes):
        if isinstance(item, Bad):
            yield item
            continue
        number, line = item
        try:
            yield Record(parse(line), str(path), number, "line")
        except ValueError as error:
            ends = not line.endswith("\n")
            yield bad(path, number, f"{error}{ENDS if ends else ''}", rest_lost=ends)


def _lines(path: Place, max_bytes: int | None) -> Iterator[tuple[int, str] | Bad]:
    """Yield the non-blank lines of a UTF-8 file with their numbers; split at line feeds only."""
    number = 0
    try:
        with open_bytes(path) as file:
            for number, raw in enumerate(file if max_bytes is None else _bounded(file, max_bytes), start=1):
                if raw is None:
                    yield bad(path, number, f"longer than {max_bytes:,} bytes; split the text, or leave it out")
                    continue
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    ends = not raw.endswith(b"\n")
                    reason = f"not valid UTF-8 ({error.reason}); convert to UTF-8{ENDS if ends else ''}"
                    yield bad(path, number, reason, rest_lost=ends)
                    continue
                if line.strip():
                    yield number, line
    except GZIP_ERRORS as error:
        yield broken_gzip(path, number, error)


def _bounded(file: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """Yield the lines of a file; None for one that is too long, whose rest is skipped."""
    while raw := file.readline(max_bytes + 1):
        if len(raw) <= max_bytes or raw.endswith(b"\n"):
            yield raw
            continue
        while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
            pass
        yield None
