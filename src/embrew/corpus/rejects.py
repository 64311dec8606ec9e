"""Rows that cannot be encoded: the first one ends the run, or they are written down, up to a limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from embrew.corpus.layout import REJECTS
from embrew.data.reading import Bad, stop
from embrew.files.writing import atomic_path

ENOUGH = 100  # rows from which on a rate means something


class Rejects:
    """Takes what is bad and counts.

    Attributes:
        rows: read so far, good and bad.
        count: bad ones.
    """

    def __init__(self, file: IO[str] | None = None, *, max_rate: float = 0.0) -> None:
        self.file = file
        self.max_rate = max_rate
        self.rows = 0
        self.count = 0
        self.first: Bad | None = None

    @property
    def skips(self) -> bool:
        """Whether bad rows are left out, not refused."""
        return self.file is not None

    def good(self) -> None:
        """Count a row that can be encoded."""
        self.rows += 1
        if self.first is not None:
            self._check()

    def __call__(self, bad: Bad) -> None:
        """Write something bad down.

        Raises:
            ValueError: nothing bad is accepted, this is too much of it, or the rest of a file is lost with it.
        """
        if self.file is None:
            stop(bad)
            return
        read = self.rows
        self.rows += 1
        self.count += 1
        self.first = self.first or bad
        line = {"file": bad.source, "line": bad.number, "reason": bad.reason}
        self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
        if bad.rest_lost:
            raise ValueError(
                f"{bad.where}: {bad.reason}. {read:,} rows were read until there, and how many follow is unknown, so "
                "they are not skipped. Finished shards are kept: the same command resumes once the file is repaired or "
                "removed"
            )
        self._check()

    def _check(self) -> None:
        if self.rows >= ENOUGH and self.count > self.max_rate * self.rows:
            assert self.first is not None
            raise ValueError(
                f"{self.count} of the first {self.rows} rows cannot be encoded, more than max_reject_rate="
                f"{self.max_rate:g}; they are in {REJECTS}, and the first is {self.first.where}: {self.first.reason}"
            )


@contextmanager
def open_rejects(folder: Path, *, skip: bool, max_rate: float) -> Iterator[Rejects]:
    """A policy; with `skip` also a file, which is there once reading has ended, well or by too many rejects."""
    if not skip:
        yield Rejects()
        return
    error: ValueError | None = None
    with atomic_path(folder / REJECTS) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        rejects = Rejects(file, max_rate=max_rate)
        try:
            yield rejects
        except ValueError as raised:  # what was rejected is what explains it
            error = raised
    if rejects.count == 0:
        (folder / REJECTS).unlink()
    if error is not None:
        raise error
