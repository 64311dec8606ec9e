"""Read the rows of a corpus as a stream: its files, and their ids and texts, in shards of a fixed size."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow.parquet as pq

from embrew.corpus.job import REJECTS, Job
from embrew.data import reading
from embrew.data.beir import Document
from embrew.data.formats import SUFFIXES, TABLES, Bad, Record, Values, named, records
from embrew.data.reading import expand, find_file, is_saved
from embrew.data.rejects import Rejects, reject_file
from embrew.ranking import sample_in_order
from embrew.stores import Place, place_of

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 1_000_000
MAX_BYTES = 8 * MAX_CHARACTERS  # of a line: a text of that length in escapes; longer lines are not held in memory
BLOCK = 1024  # rows whose ids are looked up together
ENDS = 1 << 16  # bytes at both ends of a file that are part of its fingerprint


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


class Seen:
    """Texts so far, as 128-bit hashes in few sorted arrays: 16 bytes per text."""

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def add(self, texts: Sequence[str]) -> list[bool]:
        """Add texts; return which of them are new, in earlier calls and in this one."""
        hashes = text_hashes(texts).view("S16").reshape(-1)
        new = np.zeros(len(hashes), dtype=bool)
        new[np.unique(hashes, return_index=True)[1]] = True
        for run in self._runs:
            new &= run[np.minimum(np.searchsorted(run, hashes), len(run) - 1)] != hashes
        merged = np.sort(hashes[new])
        while self._runs and len(self._runs[-1]) <= 2 * len(merged):
            merged = np.sort(np.concatenate([self._runs.pop(), merged]), kind="stable")  # two sorted runs, in one pass
        if len(merged):
            self._runs.append(merged)
        return [bool(value) for value in new]


def text_hashes(texts: Iterable[str]) -> np.ndarray:
    """Return 128-bit hashes of texts, uint64 `(texts, 2)`."""
    data = b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(data, dtype="<u8").reshape(-1, 2)


def corpus_files(path: str | Place) -> list[Place]:
    """Return the files of a corpus in order, see `embrew.data.reading.corpus_files`."""
    return cast(list[Place], reading.corpus_files(place_of(expand(str(path)))))


def warn_unread(path: str | Place) -> None:
    """Warn of data files in a local folder that are not part of the corpus."""
    folder = place_of(expand(str(path)))
    if not isinstance(folder, Path) or not folder.is_dir() or find_file(folder, "corpus") or is_saved(folder):
        return
    others = {file for file in folder.rglob("*") if file.name.lower().endswith((*SUFFIXES, *TABLES)) and file.is_file()}
    names = (file.relative_to(folder).as_posix() for file in others - {*corpus_files(folder)})
    unread = sorted(name for name in names if not any(part.startswith(".") for part in name.split("/")))
    if unread:
        logger.warning(
            "%s: not read: %s%s; of a folder, its JSON Lines, Parquet and text files are read, or if there are none "
            "its tables (CSV, TSV, JSON), without subfolders",
            path,
            ", ".join(unread[:5]),
            f" and {len(unread) - 5} more" if len(unread) > 5 else "",
        )


def fingerprint(files: Sequence[Place]) -> list[dict[str, str | int]]:
    """Return name, size and a hash of both ends of each file, to recognise another corpus without reading it all."""
    prints: list[dict[str, str | int]] = []
    for path in files:
        size = path.stat().st_size
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(ENDS))
            file.seek(max(size - ENDS, 0))
            digest.update(file.read(ENDS))
        prints.append({"file": path.name, "bytes": size, "ends_sha256": digest.hexdigest()})
    return prints


def expected_rows(files: Sequence[Place]) -> int | None:
    """Return the number of rows, with bad ones and blank lines; None if files are compressed, damaged or in a store."""
    total = 0
    with suppress(OSError, ValueError):  # those who read a damaged file say what is wrong
        for path in files:
            if isinstance(path, Path) and path.name.endswith(".parquet"):
                total += pq.read_metadata(path).num_rows
            elif isinstance(path, Path) and path.name.endswith((".jsonl", ".txt")):
                with path.open("rb") as file:
                    total += sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
            else:
                return None
        return total
    return None


@contextmanager
def job_rejects(job: Job) -> Iterator[Rejects]:
    """Yield the job's policy for bad rows: refuse the first one, or list them in the output folder."""
    with reject_file(job.folder / REJECTS if job.on_bad_rows == "skip" else None) as file:
        yield Rejects(file, max_rate=job.max_reject_rate, listed=REJECTS)


def unlisted_rejects(job: Job) -> Rejects:
    """Return the job's policy for bad rows, where another pass over the corpus lists them."""
    return Rejects(io.StringIO(), max_rate=job.max_reject_rate) if job.on_bad_rows == "skip" else Rejects()


def shards(job: Job, rejects: Rejects) -> Iterator[Shard]:
    """Yield the rows of a corpus in shards of `job.shard_rows`; the last may be smaller.

    Args:
        job: names the corpus.
        rejects: called with bad rows, and those with a repeated id, in the order of the corpus.
    """
    return in_shards(_unique(job, rejects), job.shard_rows)


def in_shards(texts: Iterator[Text], size: int, *, first: int = 0) -> Generator[Shard]:
    """Yield rows in shards of a size, numbered from `first`; the last may be smaller."""
    while rows := list(islice(texts, size)):
        digest = hashlib.sha256()
        for row in rows:
            for part in (row.id.encode(), row.text.encode()):
                digest.update(len(part).to_bytes(8, "little") + part)
        yield Shard(first, rows, digest.hexdigest())
        first += 1


def sample_texts(path: str | Path, count: int, *, seed: int = 42) -> tuple[str, ...]:
    """Return a seeded sample of the distinct texts of a corpus, in their order, blank ones left out.

    Args:
        path: whatever `encode_corpus` reads.
        count: size of the sample.
        seed: random seed of the sample.

    Raises:
        ValueError: a row has no text; or all texts are blank.
    """
    rows = (row.stop() if isinstance(row, Bad) else row for row in _rows(Job(input=path, output="")))
    texts = list(dict.fromkeys(row.text for row in rows if row.text.strip()))
    if not texts:
        raise ValueError(f"{path} holds no text that is not blank; give rows with a text")
    return tuple(sample_in_order(texts, count, seed=seed))


def _unique(job: Job, rejects: Rejects) -> Iterator[Text]:
    ids, rows = Seen(), _rows(job)
    while block := list(islice(rows, min(job.shard_rows, BLOCK))):
        new = iter(ids.add([row.id for row in block if isinstance(row, Text)]))
        for row in block:
            if isinstance(row, Bad):
                rejects(row)
            elif not next(new):
                rejects(_repeated(row, job, skips=rejects.file is not None))
            else:
                rejects.good()
                yield row
    rejects.end()


def _repeated(row: Text, job: Job, *, skips: bool) -> Bad:
    source, _, number = row.where.rpartition(", ")
    earlier = "an earlier row, which is kept"
    if not skips:  # read again, to name it
        first = next(other for other in _rows(job) if isinstance(other, Text) and other.id == row.id)
        earlier = (
            f"{first.where}{', which has no id' if first.numbered else ''}; make ids unique and give every row one, or "
            "skip bad rows (--on-bad-rows skip keeps the first)"
        )
    name = "it has no id, and its number" if row.numbered else "its id"
    return Bad(source, int(number.split()[-1]), row.where, f"{name}, {row.id!r}, is that of {earlier}")


def _rows(job: Job) -> Iterator[Text | Bad]:
    """Yield all rows of a corpus, good and bad, in order; `id_prefixes` come before numbers that stand for ids."""
    files = corpus_files(job.input)
    for file, prefix in zip(files, reading.id_prefixes(files, place_of(expand(str(job.input)))), strict=True):
        empty = True
        for item in records(file, max_bytes=MAX_BYTES):
            yield item if isinstance(item, Bad) else _text(item, job, prefix)
            empty = False
        if empty:
            yield Bad(str(file), 0, str(file), "holds no rows; leave the file out")


def _text(record: Record, job: Job, prefix: str) -> Text | Bad:
    """Return a row, or why it cannot be encoded; its number after `prefix` is its id, where it has none."""
    values, rest_lost = record.values, False
    try:
        id_column = job.id_column or named(values, "_id") or named(values, "id")
        name = f"{prefix}{record.number}"
        if id_column is not None:
            rule = "give every row an id (a text or an integer), or leave the column out"
            name = str(_cell(values, id_column, str | int, rule))
        text_column = job.text_column or named(values, "text") or "text"
        rest_lost = text_column not in values and record.source.endswith((".parquet", ".arrow"))
        text = _cell(values, text_column, str, "every row needs a text (a string)")
        title = None if job.text_column else named(values, "title")
        if title is not None and values[title] is not None:
            text = Document(id="", text=text, title=_cell(values, title, str, "titles are strings")).content
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"{text_column} has {len(text):,} characters, more than {MAX_CHARACTERS:,}; split it")
        return Text(name, text, record.where, numbered=id_column is None)
    except ValueError as error:
        return Bad(record.source, record.number, record.where, str(error), rest_lost=rest_lost)


def _cell(values: Values, column: str, kind: Any, rule: str) -> Any:
    value = values.get(column)
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    wrong = "is null" if value is None else f"is a {type(value).__name__}"
    if column not in values:
        wrong = f"is missing (there are {', '.join(values) or 'no columns'})"
    raise ValueError(f"{column} {wrong}; {rule}")
