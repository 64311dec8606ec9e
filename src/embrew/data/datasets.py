"""Load training and evaluation data as `datasets.Dataset` of canonical rows."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from embrew.data.beir import read_beir
from embrew.data.canonical import canonical_rows, check_filled
from embrew.data.columns import ACCEPTED, Kind, Layout, match, matched_columns
from embrew.data.documents import split_sentences
from embrew.data.fingerprints import RESERVED, has_reserved
from embrew.data.formats import Record, Values
from embrew.data.reading import expand, is_beir, read
from embrew.data.rejects import Rejects
from embrew.settings.validation import shortened

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

LENGTH_OF = ("text", "query", "positive", "question", "sentence1", "sentence2")
"""Columns that `min_chars` and `max_chars` are about, where they hold one text."""
SHOWN, WIDTH = 3, 80  # rows, and characters of a text, of a description
LISTS = ("negatives", "negative", "human_summaries", "machine_summaries", "answers")


def load(
    path: str | Path | Sequence[str | Path],
    *,
    kind: Kind,
    name: str | None = None,
    split: str = "train",
    revision: str | None = None,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, bool | int | float | str] | None = None,
    sentences: bool = False,
    instruction: str | None = None,
    instruct: Literal["query", "both"] = "query",
    min_chars: int | None = None,
    max_chars: int | None = None,
    max_rows: int | None = None,
    shuffle_seed: int | None = None,
    reserved: Collection[int] | None = None,
    rejects: Rejects | None = None,
) -> Dataset:
    """Read `path`, convert its rows to the canonical columns of `kind`, filter, shuffle, and take the first rows.

    Args:
        path: A file, a folder, a BEIR folder (pairs), a data set of the Hub, or a list of them.
        kind: What the rows are, see `embrew.data.columns`.
        name: Configuration of a data set of the Hub.
        split: Split of a folder, of a BEIR folder's relevance judgements, or on the Hub.
        revision: Revision on the Hub.
        columns: Canonical column -> column in the file, for names that are not known.
        where: Column in the file -> value; other rows are left out.
        sentences: Whether each text is split into sentences, one row per sentence; in pairs, each positive is replaced
            by the sentence of its query that contains it (an answer in a passage), and pairs without one are dropped.
        instruction: Instruction of every pair, instead of those in the file.
        instruct: `both`: documents also get the pair's instruction.
        min_chars: Rows with a shorter text are dropped (pairs: query or positive), without white space at the ends.
        max_chars: Rows with a longer text are dropped.
        max_rows: Maximum rows, after filters and shuffle.
        shuffle_seed: Seed of the shuffle; None: rows stay in order.
        reserved: Fingerprints of texts (see `data.fingerprints`). Adds the column `reserved`: whether the row, or
            the row that it is a sentence of, contains one of them.
        rejects: Policy for rows that cannot be used; by default the first one raises an error.
    """
    if instruction is not None and kind != "pairs":
        logger.warning("instruction=%r has no effect on %s rows", instruction, kind)
    paths = [path] if isinstance(path, str | Path) else list(path)
    limits = min_chars, max_chars, reserved, rejects or Rejects()
    reader = _Reader(kind, columns or {}, where or {}, sentences, instruction, instruct, *limits)
    rows = reader.rows(paths, name, split, revision)
    dataset = _dataset(rows if shuffle_seed is not None else islice(rows, max_rows), kind, marked=reserved is not None)
    dataset.info.description = "\n".join(reader.layouts)
    reader.report(", ".join(str(source) for source in paths), len(dataset))
    if shuffle_seed is not None:
        order = np.random.default_rng(shuffle_seed).permutation(len(dataset))
        dataset = dataset.select(order[:max_rows])
    return dataset


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return `rows`, `columns` (see `columns.matched_columns`) and shortened `examples` of a data set."""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(item) for item in value]
        return shortened(value, WIDTH) if isinstance(value, str) else value

    examples = [{column: short(value) for column, value in dataset[i].items()} for i in range(min(SHOWN, len(dataset)))]
    return {"rows": len(dataset), "columns": dataset.info.description, "examples": examples}


def row_text(row: Values) -> str:
    """Return the columns of a row that hold something, as `query: "a"; negatives: "b", "c"`."""

    def as_text(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(as_text, value))
        return json.dumps(value, ensure_ascii=False)

    return "; ".join(f"{name}: {as_text(value)}" for name, value in row.items() if value not in (None, []))


@dataclass
class _Reader:
    """Reads canonical rows and filters them; arguments as of `load`.

    Attributes:
        rejects: policy for rows that cannot be used.
        layouts: matched columns, in order.
        counts: rows that were read; that limits or `sentences` dropped; that `where` left out.
    """

    kind: Kind
    columns: Mapping[str, str]
    where: Mapping[str, bool | int | float | str]
    sentences: bool
    instruction: str | None
    instruct: Literal["query", "both"]
    min_chars: int | None
    max_chars: int | None
    reserved: Collection[int] | None
    rejects: Rejects
    layouts: dict[str, None] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def rows(self, paths: Sequence[str | Path], name: str | None, split: str, revision: str | None) -> Iterator[Values]:
        """Yield the rows of files, folders and data sets of the Hub."""
        for path in paths:
            folder = Path(expand(path))
            if is_beir(folder):
                for row, location in self._pairs(folder, split):
                    yield from self._filtered(row, location)
                continue
            by_columns: dict[tuple[str, ...], Layout] = {}  # rows of one file may differ in their optional columns
            for record in read(path, name=name, split=split, revision=revision, rejects=self.rejects):
                try:
                    rows = self._canonical(record, by_columns)
                    parts = [part for row in rows for part in self._filtered(row, record.where)]
                except ValueError as error:
                    self.rejects.refuse(record, error)
                else:
                    self.rejects.good()
                    yield from parts

    def _canonical(self, record: Record, by_columns: dict[tuple[str, ...], Layout]) -> Iterator[Values]:
        """Yield the canonical rows of a record; none for one that `where` leaves out."""
        for column in self.where:
            if column not in record.values:
                raise ValueError(
                    f"{record.where}: where names the column {column!r}; the columns are {', '.join(record.values)}"
                )
        if not all(_equals(record.values[column], value) for column, value in self.where.items()):
            self.counts.update(read=1, elsewhere=1)
            return
        key = tuple(record.values)
        if key not in by_columns:
            try:
                by_columns[key] = match(key, self.kind, mapping=self.columns, chosen=self.where)
            except ValueError as error:
                raise ValueError(f"{record.where}: {error}") from error
            self.layouts[matched_columns(key, by_columns[key])] = None
        yield from canonical_rows(
            record.values,
            by_columns[key],
            self.kind,
            where=record.where,
            instruction=self.instruction,
            instruct=self.instruct,
        )

    def _pairs(self, folder: Path, split: str) -> Iterator[tuple[Values, str]]:
        """Yield the pairs of a BEIR folder, and the position of each for messages."""
        if self.where:
            raise ValueError(
                f"{folder} is a BEIR folder, which has no columns to filter by; leave out where={dict(self.where)}"
            )
        if self.kind != "pairs":
            raise ValueError(f"{folder} is a BEIR folder, which holds pairs; for {self.kind} rows, give a file in it")
        self.layouts["columns query from queries; positive from corpus, title and text, by the qrels"] = None
        data = read_beir(folder, split)
        texts = {document.id: document.content for document in data.corpus}
        for query, grades in data.qrels.items():
            for document, grade in grades.items():
                if grade > 0:
                    location = f"{folder}, query {query!r} and document {document!r}"
                    if document not in texts:
                        raise ValueError(f"{location}: the document is not in the corpus; repair the qrels")
                    row = {"query": data.queries[query], "positive": texts[document], "negatives": []}
                    yield {**row, "instruction": self.instruction}, location

    def _filtered(self, row: Values, location: str) -> Iterator[Values]:
        """Yield a row, or what `sentences` makes of it, within the limits."""
        is_reserved = self.reserved is not None and has_reserved(row, self.reserved)
        parts = [row]
        if self.sentences and "text" in row:
            parts = [{"text": sentence} for sentence in split_sentences(row["text"])]
        elif self.sentences:
            around = [sentence for sentence in split_sentences(row["query"]) if row["positive"] in sentence]
            parts = [{**row, "positive": around[0]} if around else {}]
        for part in parts:
            self.counts["read"] += 1
            lengths = [len(part[column].strip()) for column in LENGTH_OF if isinstance(part.get(column), str)]
            shortest, longest = self.min_chars or 0, float("inf") if self.max_chars is None else self.max_chars
            if not part or not all(shortest <= length <= longest for length in lengths):
                self.counts["dropped"] += 1
                continue
            check_filled(part, where=location)
            marked = {} if self.reserved is None else {RESERVED: is_reserved or has_reserved(part, self.reserved)}
            yield {**part, **marked}

    def report(self, names: str, rows: int) -> None:
        """Raise if a data set has no rows, or too many that cannot be used; log how many were left out."""
        self.rejects.end()
        counts, rejects = self.counts, self.rejects
        if rejects.count:
            files = ", ".join(f"{count:,} of {file}" for file, count in rejects.files.items())
            logger.warning(
                "%s: %d of %d rows cannot be used and are left out: %s", names, rejects.count, rejects.rows, files
            )
        if not counts["read"] or 0 < rejects.count == rejects.rows:
            raise ValueError(f"{names} holds no rows" + (" that can be used" if rejects.count else ""))
        if not rows:
            limits = {"min_chars": self.min_chars, "max_chars": self.max_chars, "where": dict(self.where) or None}
            wanted = ", ".join(f"{name}={value}" for name, value in limits.items() if value is not None)
            raise ValueError(
                f"{names}: none of {counts['read']} rows has {wanted or 'what is asked for'}; widen the limits"
            )
        for reason, by in (("dropped", "min_chars, max_chars or sentences"), ("elsewhere", "where")):
            if counts[reason]:
                logger.info("%s: %d of %d rows dropped by %s", names, counts[reason], counts["read"], by)


def _equals(value: Any, wanted: bool | int | float | str) -> bool:
    """Whether a value is the wanted one; numbers and booleans may be written as text, as in CSV files."""
    if not isinstance(value, str) or isinstance(wanted, str):
        return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)
    if isinstance(wanted, bool):
        return value.strip().lower() == str(wanted).lower()
    try:
        return float(value) == wanted
    except ValueError:
        return False


def _dataset(rows: Iterable[Values], kind: Kind, *, marked: bool) -> Dataset:
    """Return rows as one in-memory Arrow table, built in blocks."""
    import datasets
    import pyarrow as pa
    from datasets.fingerprint import generate_random_fingerprint

    text, number = datasets.Value("string"), datasets.Value("float64")
    types = {"score": number, "scores": datasets.List(number), "relevance": datasets.List(number)}
    types["vector"] = datasets.List(datasets.Value("float32"))
    types |= dict.fromkeys(LISTS if kind == "pairs" else (*LISTS, "positive"), datasets.List(text))
    features = datasets.Features({column: types.get(column, text) for column in ACCEPTED[kind]})
    if kind == "pairs":
        features["document_instruction"] = text
    if marked:
        features[RESERVED] = datasets.Value("bool")
    schema, iterator = features.arrow_schema, iter(rows)
    tables = [schema.empty_table()]
    while piece := list(islice(iterator, 10_000)):
        tables.append(pa.Table.from_pylist(piece, schema=schema))
    info = datasets.DatasetInfo(features=features)
    # The fingerprint names files of a cache that we do not write; without one, all rows would be pickled.
    return datasets.Dataset(pa.concat_tables(tables), info=info, fingerprint=generate_random_fingerprint())
