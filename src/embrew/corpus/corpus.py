"""Read the rows of a corpus as a stream: ids and texts, in shards of a fixed size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from embrew.corpus.ids import Ids
from embrew.corpus.input_files import corpus_files
from embrew.corpus.job import Job
from embrew.corpus.layout import REJECTS
from embrew.data.beir import Document
from embrew.data.formats import Bad, Record, named, records, same_name
from embrew.data.reading import expand
from embrew.data.rejects import Rejects, reject_file
from embrew.stores.paths import Place, place_of

MAX_CHARACTERS = 1_000_000
MAX_BYTES = 8 * MAX_CHARACTERS  # of a line: a text of that length in escapes; longer lines are not held in memory
BLOCK = 1024  # rows whose ids are looked up together


class Text(NamedTuple):
    """A row: its id, the text to encode, its position in the file, and whether the id is its number."""

    id: str
    text: str
    where: str
    numbered: bool = False


class Shard(NamedTuple):
    """Rows of one file of vectors, and a hash of their ids and texts."""

    number: int
    rows: list[Text]
    sha256: str


@contextmanager
def job_rejects(job: Job) -> Iterator[Rejects]:
    """Yield the job's policy for bad rows: refuse the first one, or list them in the output folder."""
    with reject_file(job.folder / REJECTS if job.on_bad_rows == "skip" else None) as file:
        yield Rejects(file, max_rate=job.max_reject_rate, listed=REJECTS)


def read_texts(job: Job, rejects: Rejects, ids: Ids | None = None) -> Iterator[Text]:
    """Yield the rows of a corpus; `rejects` gets bad ones, and those with a repeated id.

    Args:
        job: names the corpus.
        rejects: called with bad rows, in the order of the corpus.
        ids: finds repeated ids; by default, rows with one are bad.
    """
    ids = Ids() if ids is None else ids
    lines_only = all(file.name.endswith((".txt", ".txt.gz")) for file in corpus_files(job.input))  # numbers are unique
    rows = _rows(job)
    while block := list(islice(rows, min(job.shard_rows, BLOCK))):
        texts = [row for row in block if isinstance(row, Text)]
        again = iter([False] * len(texts) if lines_only else ids.repeated([row.id for row in texts]))
        for row in block:
            if isinstance(row, Text) and next(again) and not ids.keep:
                rejects(_repeated(row, job, first=None if rejects.skips else _first(row.id, job)))
            elif isinstance(row, Text):
                rejects.good()
                yield row
            else:
                rejects(row)
    rejects.end()


def _rows(job: Job) -> Iterator[Text | Bad]:
    """Yield all rows of a corpus, good and bad, in order."""
    files = corpus_files(job.input)
    names = _names(files, place_of(expand(str(job.input))))
    for file in files:
        empty = True
        for item in records(file, max_bytes=MAX_BYTES):
            yield item if isinstance(item, Bad) else _text(item, job, names[str(file)])
            empty = False
        if empty:
            yield Bad(str(file), 0, str(file), "holds no rows; leave the file out")


def _names(files: Sequence[Place], folder: Place) -> dict[str, str]:
    """Return what precedes row numbers in ids, by file: nothing where there is one file only, else its name.

    Where several files have one name, as the splits of a saved data set, it is the path in the folder.
    """
    if len(files) == 1:
        return {str(files[0]): ""}
    if len({file.name for file in files}) == len(files):
        return {str(file): f"{file.name}:" for file in files}
    return {str(file): str(file).removeprefix(str(folder)).lstrip("/\\") + ":" for file in files}


def _text(record: Record, job: Job, name: str) -> Text | Bad:
    """Return a row, or why it cannot be encoded; its number after `name` is its id, where it has none."""
    number = f"{name}{record.number}"
    lacks_text = False
    try:
        given = _id(record, job.id_column)
        lacks_text = (job.text_column or named(record.values, "text")) not in record.values
        return Text(given or number, _content(record, job.text_column), record.where, numbered=not given)
    except ValueError as error:
        whole_file = lacks_text and record.source.endswith((".parquet", ".arrow"))
        return Bad(record.source, record.number, record.where, str(error), rest_lost=whole_file)


def _first(name: str, job: Job) -> Text:
    """Read the corpus again and return the first row with an id."""
    return next(row for row in _rows(job) if isinstance(row, Text) and row.id == name)


def _repeated(row: Text, job: Job, *, first: Text | None) -> Bad:
    source, _, number = row.where.rpartition(", ")
    earlier = "an earlier row" if first is None else first.where
    if row.numbered or (first is not None and first.numbered):
        whose = "it has no id, and its number" if row.numbered else "its id"
        reason = f"{whose}, {row.id!r}, is the {'id' if row.numbered else 'number'} of {earlier}"
        todo = "give every row an id, or none"
    else:
        reason, todo = f"its id, {row.id!r}, is that of {earlier}", "make ids unique"
    kept = ", which is kept" if first is None else f"; {todo}, or skip bad rows (--on-bad-rows skip keeps the first)"
    return Bad(source, int(number.split()[-1]), row.where, reason + kept)


def shards(job: Job, rejects: Rejects, ids: Ids | None = None) -> Iterator[Shard]:
    """Yield the rows of `read_texts` in shards of `job.shard_rows`; the last may be smaller."""
    texts = read_texts(job, rejects, ids)
    number = 0
    while rows := list(islice(texts, job.shard_rows)):
        yield Shard(number, rows, rows_sha256(rows))
        number += 1


def rows_sha256(rows: list[Text]) -> str:
    """Return the sha256 of the ids and texts of rows."""
    digest = hashlib.sha256()
    for row in rows:
        for part in (row.id.encode(), row.text.encode()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _id(record: Record, column: str | None) -> str | None:
    for name in (column,) if column else ("_id", "id"):
        value = _value(record, name, exact=column is not None)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            raise ValueError(f"{name} is a {type(value).__name__}; ids are texts or integers")
        if name in record.values and column is None:
            raise ValueError(f"{name} is null; give every row an id, or leave the column out")
    if column:
        raise ValueError(f"{column} {_lacking(record, column)}; give every row an id, or leave id_column out")
    return None


def _content(record: Record, column: str | None) -> str:
    name = column or "text"
    text = _value(record, name, exact=column is not None)
    title = None if column else _value(record, "title")
    if text is None:
        raise ValueError(f"{name} {_lacking(record, name)}; a row needs a text")
    for what, value in ((name, text), ("title", title)):
        if not isinstance(value, str | None):
            raise ValueError(f"{what} is a {type(value).__name__}; texts are strings")
    content = text if column else Document(id="", text=text, title=title or "").content
    if len(content) > MAX_CHARACTERS:
        raise ValueError(f"{name} has {len(content):,} characters, more than {MAX_CHARACTERS:,}; split it")
    return content


def _value(record: Record, name: str, *, exact: bool = False) -> Any:
    """Return the value of a column; upper and lower case do not count unless `exact`."""
    return record.values.get(name if exact else named(record.values, name) or name)


def _lacking(record: Record, name: str) -> str:
    return (
        "is null"
        if same_name(record.values, name)
        else f"is missing (there are {', '.join(record.values) or 'no columns'})"
    )
