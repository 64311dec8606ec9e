"""Read JSON files: an array of objects, or one object per line."""

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from embrew.data.lines import GZIP_ERRORS, broken_gzip, checked_object, open_bytes, read_json_lines
from embrew.data.record import Bad, Record, bad, broken
from embrew.files.reading import Place

CHUNK = 1 << 16  # bytes
LITERAL = 16  # characters: an error this close to the end may come from an incomplete literal or escape
FORM = "a .json file holds an array of objects, or one object per line"
BLANK = " \t\r\n"


def read_json(path: Place, max_bytes: int | None) -> Iterator[Record | Bad]:
    """Yield the rows of a JSON file; one that does not begin with `[` is read as JSON Lines."""
    try:
        is_array = _first_byte(path) == b"["
    except GZIP_ERRORS as error:
        yield broken_gzip(path, 0, error, unit="row")
        return
    if is_array:
        yield from _read_array(path)
        return
    for item in read_json_lines(path, max_bytes):
        yield item._replace(reason=f"{item.reason}; {FORM}") if isinstance(item, Bad) else item


def _first_byte(path: Place) -> bytes:
    """Return the first byte that is neither blank nor of a byte order mark."""
    with open_bytes(path) as file:
        while part := file.read(CHUNK):
            if found := part.lstrip(codecs.BOM_UTF8 + BLANK.encode()):
                return found[:1]
    return b""


class _Text:
    """The text of a file from a position on, read in chunks.

    Attributes:
        text: the part that is in memory.
        at: position in `text`.
        ended: whether `text` reaches the end of the file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._scan = json.JSONDecoder().raw_decode
        self.text, self.at, self.ended = "", 0, False

    def first(self) -> str:
        """Move to the next character that is not blank and return it; "" at the end of the file."""
        while True:
            while self.at < len(self.text):
                if self.text[self.at] not in BLANK:
                    return self.text[self.at]
                self.at += 1
            if self.ended:
                return ""
            self._more(CHUNK)

    def take(self) -> str:
        """Move past the next character that is not blank, and return it."""
        found = self.first()
        self.at += 1
        return found

    def value(self) -> tuple[Any, bool]:
        r"""Move past the next JSON value; return it and whether its text has `\u` escapes.

        Raises:
            ValueError: it is not valid JSON, or the file ends within it.
        """
        self.first()
        size = CHUNK
        while True:
            try:
                value, end = self._scan(self.text, self.at)
                if end < len(self.text) or self.ended:  # otherwise the next chunk may continue a number
                    escapes = "\\u" in self.text[self.at : end]
                    self.at = end
                    return value, escapes
            except json.JSONDecodeError as error:
                within = error.pos > len(self.text) - LITERAL or error.msg.startswith("Unterminated string")
                if self.ended or not within:
                    raise
            self._more(size)
            size *= 2  # a long value is not scanned too often

    def _more(self, size: int) -> None:
        """Drop the text before the position, and read more."""
        raw = self._file.read(size)
        self.text, self.at = self.text[self.at :] + self._decode(raw, not raw), 0
        self.ended = not raw


def _read_array(path: Place) -> Iterator[Record | Bad]:
    """Yield the rows of an array; one at a time is in memory."""
    number = 0
    try:
        with open_bytes(path) as file:
            text = _Text(file)
            separator = "," if text.take() and text.first() != "]" else text.take()
            while separator == ",":
                value, escapes = text.value()
                number += 1
                try:
                    yield Record(checked_object(value, escapes=escapes), str(path), number)
                except ValueError as error:
                    yield bad(path, number, str(error), unit="row")
                separator = text.take()
            if separator != "]":
                raise ValueError(f"no comma or ] after row {number}" if separator else "the file ends within the array")
            if text.first():
                raise ValueError("there is text after the array")
    except GZIP_ERRORS as error:
        yield broken_gzip(path, number, error, unit="row")
    except UnicodeDecodeError as error:
        yield broken(path, number, f"not valid UTF-8 ({error.reason}); convert to UTF-8", unit="row")
    except (ValueError, RecursionError) as error:
        yield broken(path, number, f"not valid JSON ({error}); repair the file, or write it again", unit="row")
