"""Policy for rows that cannot be used: the first one raises an error, or they are listed in a file, up to a limit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Literal

from embrew.data.formats import Bad, Record
from embrew.files.reading import Place
from embrew.files.writing import atomic_path

OnBadRows = Literal["strict", "skip"]
MAX_RATE = 0.01
ENOUGH = 100  # number of rows from which a rate is meaningful


class Rejects:
    """Counts rows, and lists bad ones or raises an error.

    Args:
        file: file for bad rows, one JSON object per line; None: the first one raises an error.
        max_rate: at most this share of the rows may be bad, or of 100 rows if there are fewer.
        purpose: what is done with the rows, for messages.
        listed: the file's name, for messages.

    Attributes:
        rows: number of rows so far, good and bad.
        count: number of bad rows.
        files: number of bad rows per file.
        bad: the bad rows.
    """

    def __init__(
        self, file: IO[str] | None = None, *, max_rate: float = 0.0, purpose: str = "encoded", listed: str = ""
    ) -> None:
        self.file = file
        self.max_rate = max_rate
        self.purpose = purpose
        self.listed = listed
        self.rows = 0
        self.files: Counter[str] = Counter()
        self.bad: list[Bad] = []

    @property
    def count(self) -> int:
        """Number of bad rows."""
        return self.files.total()

    def good(self, rows: int = 1) -> None:
        """Count rows that can be used."""
        self.rows += rows
        if self.bad:
            self._check()

    def __call__(self, bad: Bad) -> None:
        """List a bad row.

        Raises:
            ValueError: bad rows are not accepted, there are too many, or the rest of the file cannot be read.
        """
        if self.file is None:
            bad.stop()
        read = self.rows
        self.rows += 1
        self.files[bad.source] += 1
        self.bad.append(bad)
        line = {"file": bad.source, "line": bad.number, "reason": bad.reason}
        self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
        if bad.rest_lost:
            raise ValueError(
                f"{bad.where}: {bad.reason}. {read:,} rows were read until there, and how many follow is unknown, so "
                "they are not skipped. What is finished is kept: the same command resumes once the file is repaired or "
                "removed"
            )
        self._check()

    def refuse(self, record: Record, error: ValueError) -> None:
        """List a row that was read and cannot be used; raise the error if bad rows are not accepted."""
        if self.file is None:
            raise error
        self(Bad(record.source, record.number, record.where, str(error).removeprefix(f"{record.where}: ")))

    def end(self) -> None:
        """Check the share of bad rows once all rows are read.

        Raises:
            ValueError: it is above the limit.
        """
        if self.count > self.max_rate * max(self.rows, ENOUGH):
            self._stop("")

    def _check(self) -> None:
        if (self.rows >= ENOUGH or not self.max_rate) and self.count > self.max_rate * self.rows:
            self._stop("first ")

    def _stop(self, which: str) -> None:
        first = self.bad[0]
        listed = f"; they are in {self.listed}, and" if self.listed else ";"
        raise ValueError(
            f"{self.count} of the {which}{self.rows} rows cannot be {self.purpose}, more than max_reject_rate="
            f"{self.max_rate:g}{listed} the first is {first.where}: {first.reason}"
        )


@contextmanager
def reject_file(path: Place | None) -> Iterator[IO[str] | None]:
    """Open a file for bad rows. It is written when the block ends, also by too many of them.

    Without bad rows there is no file. None: no file is opened.
    """
    if path is None:
        yield None
        return
    error: ValueError | None = None
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        try:
            yield file
        except ValueError as raised:  # the list explains it
            error = raised
    if path.stat().st_size == 0:
        path.unlink()
    if error is not None:
        raise error
