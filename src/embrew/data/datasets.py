"""Load training and evaluation data as `datasets.Dataset` of canonical rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from embrew.data.beir import read_beir
from embrew.data.canonical import canonical_rows, check_filled
from embrew.data.columns import ACCEPTED, Kind, Layout, match, matched_columns
from embrew.data.formats import Record
from embrew.data.overlap import RESERVED, holds
from embrew.data.reading import expand, is_beir, read
from embrew.data.rejects import Rejects
from embrew.data.sentences import split_sentences

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

LENGTH_OF = ("text", "query", "positive", "question", "sentence1", "sentence2")
"""Columns that `min_chars` and `max_chars` are about, where they hold one text."""
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
        split: Split of a folder, of a BEIR folder's relevance judgements, or on the Hub.
        columns: Canonical column -> column in the file, for names that are not known.
        where: Column in the file -> value; other rows are left out.
        sentences: Whether each text is split into sentences, one row per sentence; in pairs, whether each positive is
            replaced by the sentence of its query that contains it (an answer in a passage); pairs without one are
            dropped.
        instruction: Instruction of every pair, instead of those in the file.
        instruct: `both`: documents also get the pair's instruction.
        min_chars: Rows with a shorter text are dropped (pairs: query or positive), without white space at the ends.
        max_chars: Rows with a longer text are dropped.
        max_rows: Maximum rows, after filters and shuffle.
        reserved: Fingerprints of texts (see `overlap.fingerprints`). Adds the column `reserved`: whether the row, or
            the row that it is a sentence of, contains one of them.
        rejects: Policy for rows that cannot be read, that have other columns or an empty text; by default the first one
            raises an error.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    names = ", ".join(str(one) for one in paths)
    _check_options(kind, max_rows, sentences, instruction)
    layouts: dict[str, None] = {}  # matched columns, in order
    counts = {"read": 0, "dropped": 0, "elsewhere": 0}
    rejects = rejects or Rejects()

    def filtered(row: dict[str, Any] | None, place: str) -> Iterator[dict[str, Any]]:
        is_reserved = reserved is not None and row is not None and holds(row, reserved)
        for part in _parts(row, sentences):
            counts["read"] += 1
            if part is None:
                counts["elsewhere"] += 1
            elif part and _within(part, min_chars, max_chars):
                check_filled(part, where=place)
                yield part if reserved is None else {**part, RESERVED: is_reserved or holds(part, reserved)}
            else:
                counts["dropped"] += 1

    def rows() -> Iterator[dict[str, Any]]:
        for one in paths:
            folder = Path(expand(one))
            if is_beir(folder):
                for row, place in _beir_rows(folder, kind, split, instruction, where, layouts):
                    yield from filtered(row, place)
                continue
            by_columns: dict[tuple[str, ...], Layout] = {}  # rows of one file may differ in their optional columns
            for record in read(one, name=name, split=split, revision=revision, rejects=rejects):
                try:
                    pairs = _rows(record, kind, columns, where, instruction, instruct, by_columns, layouts)
                    parts = [part for row in pairs for part in filtered(row, record.where)]
                except ValueError as error:
                    rejects.refuse(record, error)
                else:
                    rejects.good()
                    yield from parts

    first = rows() if max_rows is None or shuffle_seed is not None else islice(rows(), max_rows)
    dataset = _dataset(first, kind, marked=reserved is not None)
    dataset.info.description = "\n".join(layouts)
    rejects.end()
    limits = {"min_chars": min_chars, "max_chars": max_chars, "where": where and dict(where)}
    _report(names, len(dataset), counts, rejects, limits)
    if shuffle_seed is not None:
        order = np.random.default_rng(shuffle_seed).permutation(len(dataset))
        dataset = dataset.select(order[:max_rows])
    return dataset


def _check_options(kind: Kind, max_rows: int | None, sentences: bool, instruction: str | None) -> None:
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows={max_rows}; give a number above 0, or leave it out for all rows")
    if sentences and kind not in ("text", "pairs"):
        raise ValueError(f"sentences=True is for text rows and pairs, and these are {kind} rows; leave it out")
    if instruction is not None and kind != "pairs":
        logger.warning("instruction=%r has no effect on %s rows", instruction, kind)


def _report(names: str, rows: int, counts: Mapping[str, int], rejects: Rejects, limits: Mapping[str, Any]) -> None:
    """Raise if a data set has no rows; log how many were left out."""
    if rejects.count:
        files = ", ".join(f"{count:,} of {file}" for file, count in rejects.files.items())
        logger.warning(
            "%s: %d of %d rows cannot be used and are left out: %s", names, rejects.count, rejects.rows, files
        )
    if not counts["read"] or 0 < rejects.count == rejects.rows:
        raise ValueError(f"{names} holds no rows" + (" that can be used" if rejects.count else ""))
    if not rows:
        wanted = ", ".join(f"{name}={value}" for name, value in limits.items() if value is not None)
        raise ValueError(
            f"{names}: none of {counts['read']} rows has {wanted or 'what is asked for'}; widen the limits"
        )
    for reason, by in (("dropped", "min_chars, max_chars or sentences"), ("elsewhere", "where")):
        if counts[reason]:
            logger.info("%s: %d of %d rows dropped by %s", names, counts[reason], counts["read"], by)


def describe(dataset: Dataset, *, rows: int = 3, width: int = 80) -> dict[str, Any]:
    """Return `rows`, `columns` (see `columns.matched_columns`) and shortened `examples` of a data set."""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(item) for item in value]
        return value[: width - 1] + "…" if isinstance(value, str) and len(value) > width else value

    examples = [{column: short(value) for column, value in dataset[i].items()} for i in range(min(rows, len(dataset)))]
    return {"rows": len(dataset), "columns": dataset.info.description, "examples": examples}


def row_text(row: Mapping[str, Any]) -> str:
    """Return the columns of a row that hold something, as `query: "a"; negatives: "b", "c"`."""

    def shown(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(shown, value))
        return json.dumps(value, ensure_ascii=False)

    return "; ".join(f"{name}: {shown(value)}" for name, value in row.items() if value not in (None, []))


def _rows(
    record: Record,
    kind: Kind,
    mapping: Mapping[str, str] | None,
    where: Mapping[str, Any] | None,
    instruction: str | None,
    instruct: Literal["query", "both"],
    by_columns: dict[tuple[str, ...], Layout],
    seen: dict[str, None],
) -> list[dict[str, Any] | None]:
    """Return the canonical rows of a record; None for one that `where` leaves out.

    `by_columns` holds the layouts of the columns so far; matched columns are added to `seen`.
    """
    if where and not _holds(record, where):
        return [None]
    key = tuple(record.values)
    if key not in by_columns:
        try:
            by_columns[key] = match(key, kind, mapping=mapping, chosen=where or ())
        except ValueError as error:
            raise ValueError(f"{record.where}: {error}") from error
        seen[matched_columns(key, by_columns[key])] = None
    layout, place = by_columns[key], record.where
    return list(canonical_rows(record.values, layout, kind, where=place, instruction=instruction, instruct=instruct))


def _beir_rows(
    folder: Path,
    kind: Kind,
    split: str,
    instruction: str | None,
    where: Mapping[str, Any] | None,
    seen: dict[str, None],
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the pairs of a BEIR folder, and the position of each for messages."""
    if where:
        raise ValueError(f"{folder} is a BEIR folder, which has no columns to filter by; leave out where={where}")
    if kind != "pairs":
        raise ValueError(f"{folder} is a BEIR folder, which holds pairs; for {kind} rows, give a file in it")
    seen["columns query from queries; positive from corpus, title and text, by the qrels"] = None
    data = read_beir(folder, split)
    texts = {document.id: document.content for document in data.corpus}
    for query, grades in data.qrels.items():
        for document, grade in grades.items():
            if grade > 0:
                place = f"{folder}, query {query!r} and document {document!r}"
                if document not in texts:
                    raise ValueError(f"{place}: the document is not in the corpus; repair the qrels")
                row = {"query": data.queries[query], "positive": texts[document], "negatives": []}
                yield {**row, "instruction": instruction}, place


def _parts(row: dict[str, Any] | None, sentences: bool) -> list[dict[str, Any] | None]:
    """Return the row, or what `sentences` makes of it; an empty row if there is no such sentence."""
    if not row or not sentences:
        return [row]
    if "text" in row:
        return [{"text": sentence} for sentence in split_sentences(row["text"])]
    around = next((sentence for sentence in split_sentences(row["query"]) if row["positive"] in sentence), None)
    return [{} if around is None else {**row, "positive": around}]


def _holds(record: Record, where: Mapping[str, Any]) -> bool:
    for column in where:
        if column not in record.values:
            raise ValueError(
                f"{record.where}: where names the column {column!r}; the columns are {', '.join(record.values)}"
            )
    return all(_equals(record.values[column], value) for column, value in where.items())


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


def _within(row: Mapping[str, Any], min_chars: int | None, max_chars: int | None) -> bool:
    if min_chars is None and max_chars is None:
        return True
    lengths = [len(row[column].strip()) for column in LENGTH_OF if isinstance(row.get(column), str)]
    return min(lengths) >= (min_chars or 0) and (max_chars is None or max(lengths) <= max_chars)


def _dataset(rows: Iterable[dict[str, Any]], kind: Kind, *, marked: bool) -> Dataset:
    """Return rows as one in-memory Arrow table, built in blocks."""
    import datasets
    import pyarrow as pa
    from datasets.fingerprint import generate_random_fingerprint

    text, number = datasets.Value("string"), datasets.Value("float64")
    types = {"score": number, "scores": datasets.List(number), "relevance": datasets.List(number)}
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
