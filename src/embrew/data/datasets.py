"""Load training and evaluation data as `datasets.Dataset` of canonical rows."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from embrew.data.beir import read_beir
from embrew.data.canonical import Converter, empty_column
from embrew.data.columns import ACCEPTED, Kind, match, matched_columns
from embrew.data.documents import split_sentences
from embrew.data.fingerprints import RESERVED, TEXTS, has_reserved
from embrew.data.formats import Bad, Record, Values
from embrew.data.kept import is_kept, kept_rows
from embrew.data.reading import expand, files_of, is_beir, local_files, read
from embrew.data.rejects import Rejects
from embrew.files.checksums import digest_of, file_sha256
from embrew.files.formats import versions
from embrew.settings.validation import shortened

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset, Features

logger = logging.getLogger(__name__)

LENGTH_OF = ("text", "query", "positive", "question", "sentence1", "sentence2")
"""Columns that `min_chars` and `max_chars` are about, where they hold one text."""
SHOWN, WIDTH = 3, 80  # rows, and characters of a text, of a description
BLOCK = 1000  # rows of one Arrow batch
KEPT_BY = ("kind", "columns", "where", "sentences", "instruction", "instruct", "min_chars", "max_chars")
"""Settings that rows depend on."""
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
    dataset = reader.dataset(paths, name, split, revision, max_rows=max_rows if shuffle_seed is None else None)
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

    def dataset(
        self, paths: Sequence[str | Path], name: str | None, split: str, revision: str | None, *, max_rows: int | None
    ) -> Dataset:
        """Return the first rows of files, folders and data sets of the Hub, in memory or mapped from a kept file."""
        import datasets
        import pyarrow as pa
        from datasets.fingerprint import generate_random_fingerprint
        from datasets.table import InMemoryTable, MemoryMappedTable

        features = self._features()
        schema = features.arrow_schema

        def tables() -> Iterator[pa.Table]:
            return self.tables(paths, name, split, revision, schema, max_rows)

        local = [Path(expand(path)) for path in paths]
        files = [file for path in local if path.exists() for file in _files(path, split)]
        if max_rows is None and len(local) == sum(path.exists() for path in local) and is_kept(files):
            key = self._key(local, files, split)

            def about() -> dict[str, Any]:
                if self._key(local, files, split) != key:
                    raise ValueError(f"{', '.join(map(str, local))} changed while it was read; read it again")
                return self._about()

            file, report = kept_rows(key, schema, tables, about)
            if not self.counts["read"]:  # an earlier process read them
                self.layouts = dict.fromkeys(report["layouts"])
                self.counts.update(report["counts"])
                self.rejects.good(report["good"])
                for bad in report["bad"]:
                    self.rejects(Bad(*bad))
            table = MemoryMappedTable.from_file(str(file))
        else:
            table = InMemoryTable(pa.concat_tables([schema.empty_table(), *tables()]))
        info = datasets.DatasetInfo(features=features, description="\n".join(self.layouts))
        # The fingerprint names files of datasets' own cache, which is not used; without one, all rows would be pickled.
        return datasets.Dataset(table, info=info, fingerprint=generate_random_fingerprint())

    def _features(self) -> Features:
        """Return the canonical columns and their types."""
        from datasets import Features, List, Value

        text, number = Value("string"), Value("float64")
        types = {"score": number, "scores": List(number), "relevance": List(number), "vector": List(Value("float32"))}
        types |= dict.fromkeys(LISTS if self.kind == "pairs" else (*LISTS, "positive"), List(text))
        features = Features({column: types.get(column, text) for column in ACCEPTED[self.kind]})
        if self.kind == "pairs":
            features["document_instruction"] = text
        if self.reserved is not None:
            features[RESERVED] = Value("bool")
        return features

    def _key(self, paths: Sequence[Path], files: Sequence[Path], split: str) -> str:
        """Return a hash of the contents of files and of all settings that rows depend on."""
        named = self.rejects.file is not None  # bad rows are listed with the names of their files
        contents = [[str(file) if named else file.name, file_sha256(file, cached=True)] for file in files]
        settings = {name: getattr(self, name) for name in KEPT_BY}
        reserved = None if self.reserved is None else digest_of(sorted(self.reserved))
        return digest_of(
            [versions(["embrew"]), [is_beir(path) for path in paths], contents, split, settings, reserved]
        )[:32]

    def _about(self) -> dict[str, Any]:
        """Return what is reported about the rows that were read."""
        good = self.rejects.rows - self.rejects.count
        return {"layouts": [*self.layouts], "counts": self.counts, "good": good, "bad": self.rejects.bad}

    def tables(
        self,
        paths: Sequence[str | Path],
        name: str | None,
        split: str,
        revision: str | None,
        schema: pa.Schema,
        max_rows: int | None,
    ) -> Iterator[pa.Table]:
        """Yield the first rows of files, folders and data sets of the Hub, part by part."""
        import pyarrow as pa

        left = sys.maxsize if max_rows is None else max_rows
        for path in paths:
            folder = Path(expand(path))
            if is_beir(folder):
                pairs = self._pairs(folder, split)
                rows: Iterator[Values] = (part for row, location in pairs for part in self._filtered(row, location))
            else:
                records = read(path, name=name, split=split, revision=revision, rejects=self.rejects)
                by_columns: dict[tuple[str, ...], Converter] = {}  # rows may differ in their optional columns
                rows = self._rows(records, by_columns)
                error: Exception | None = None
                while self.is_plain and left and error is None:
                    block, error = _first(records, min(left, BLOCK))
                    if not block and error is None:
                        break
                    table = self._as_they_are(block, by_columns, schema)
                    if table is None:
                        table = pa.Table.from_pylist([*self._rows(iter(block), by_columns)][:left], schema=schema)
                    left -= len(table)
                    yield table
                if error is not None:
                    raise error
            while part := list(islice(rows, min(left, BLOCK))):
                left -= len(part)
                yield pa.Table.from_pylist(part, schema=schema)

    @property
    def is_plain(self) -> bool:
        """Whether rows are neither filtered nor changed, and the first bad one is an error."""
        changes = self.where or self.sentences or self.min_chars or self.reserved is not None or self.rejects.file
        return not changes and self.max_chars is None and self.instruct == "query"

    def _as_they_are(
        self, block: list[Record], by_columns: dict[tuple[str, ...], Converter], schema: pa.Schema
    ) -> pa.Table | None:
        """Return rows whose values are texts and need no conversion; None: they have to be converted one by one."""
        import pyarrow as pa

        values = [record.values for record in block]
        keys = {*map(tuple, values)}
        if len(keys) != 1:
            return None
        layout = self._converter(keys.pop(), block[0], by_columns).layout
        columns: dict[str, Sequence[Any]] = {}
        for column, (source, *others) in layout.items():
            cells = [row[source] for row in values]
            is_list = column == "negatives" and {*map(type, cells)} == {list}
            texts = list(chain.from_iterable(cells)) if is_list else cells
            if column not in TEXTS or others or not {*map(type, texts)} <= {str} or not all(map(str.strip, texts)):
                return None
            columns[column] = cells if is_list or column != "negatives" else [[text] for text in cells]
        if self.kind == "pairs":
            columns.setdefault("negatives", [[]] * len(block))
            columns["instruction"] = [self.instruction] * len(block)
        self.counts["read"] += len(block)
        self.rejects.good(len(block))
        arrays = [pa.array(columns.get(field.name, [None] * len(block)), field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _rows(self, records: Iterator[Record], by_columns: dict[tuple[str, ...], Converter]) -> Iterator[Values]:
        """Yield the canonical rows of records, within the limits."""
        for record in records:
            try:
                rows = [part for row in self._canonical(record, by_columns) for part in self._filtered(row, record)]
            except ValueError as error:
                self.rejects.refuse(record, error)
            else:
                self.rejects.good()
                yield from rows

    def _canonical(self, record: Record, by_columns: dict[tuple[str, ...], Converter]) -> Sequence[Values]:
        """Return the canonical rows of a record; none for one that `where` leaves out."""
        for column in self.where:
            if column not in record.values:
                raise ValueError(
                    f"{record.where}: where names the column {column!r}; the columns are {', '.join(record.values)}"
                )
        if self.where and not all(_equals(record.values[column], value) for column, value in self.where.items()):
            self.counts.update(read=1, elsewhere=1)
            return ()
        return self._converter(tuple(record.values), record, by_columns)(record)

    def _converter(
        self, key: tuple[str, ...], record: Record, by_columns: dict[tuple[str, ...], Converter]
    ) -> Converter:
        """Return what converts rows with the columns of `key`, such as `record`."""
        if key not in by_columns:
            try:
                layout = match(key, self.kind, mapping=self.columns, chosen=self.where)
            except ValueError as error:
                raise ValueError(f"{record.where}: {error}") from error
            self.layouts[matched_columns(key, layout)] = None
            by_columns[key] = Converter(layout, self.kind, instruction=self.instruction, instruct=self.instruct)
        return by_columns[key]

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

    def _filtered(self, row: Values, source: Record | str) -> Iterator[Values]:
        """Yield a row, or what `sentences` makes of it, within the limits; `source` is for messages."""
        is_reserved = self.reserved is not None and has_reserved(row, self.reserved)
        parts = [row]
        if self.sentences and "text" in row:
            parts = [{"text": sentence} for sentence in split_sentences(row["text"])]
        elif self.sentences:
            around = [sentence for sentence in split_sentences(row["query"]) if row["positive"] in sentence]
            parts = [{**row, "positive": around[0]} if around else {}]
        for part in parts:
            self.counts["read"] += 1
            if not part or ((self.min_chars or self.max_chars is not None) and not self._is_within(part)):
                self.counts["dropped"] += 1
                continue
            if empty := empty_column(part):
                where = source.where if isinstance(source, Record) else source
                raise ValueError(f"{where}: {empty} is empty; remove the row, or set min_chars to drop short texts")
            if self.reserved is not None:
                part[RESERVED] = is_reserved or has_reserved(part, self.reserved)
            yield part

    def _is_within(self, row: Values) -> bool:
        """Return whether all texts of a row have at least `min_chars` and at most `max_chars` characters."""
        lengths = [len(row[column].strip()) for column in LENGTH_OF if isinstance(row.get(column), str)]
        longest = float("inf") if self.max_chars is None else self.max_chars
        return all((self.min_chars or 0) <= length <= longest for length in lengths)

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


def _first(records: Iterator[Record], count: int) -> tuple[list[Record], Exception | None]:
    """Return the first records, and the error that reading one raised, so that those before it are used first."""
    block: list[Record] = []
    try:
        block.extend(islice(records, count))
    except Exception as error:
        return block, error
    return block, None


def _files(path: Path, split: str) -> list[Path]:
    """Return the files that rows of a path are read from."""
    return files_of(path, split) if is_beir(path) else local_files(path, split)
