"""Load training and evaluation data as `datasets.Dataset` of canonical rows."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embrew.data.beir import is_beir, read_beir
from embrew.data.canonical import canonical_rows, check_filled
from embrew.data.columns import LENGTH_OF, Kind, Layout, match, matched_columns
from embrew.data.overlap import RESERVED, holds
from embrew.data.reading import expand, read
from embrew.data.record import Bad, Record
from embrew.data.rejects import Rejects
from embrew.data.sentences import split_sentences

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


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
) -> "Dataset":
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
        max_rows: Rows kept, after filters and shuffle.
        reserved: Fingerprints of texts (see `overlap.fingerprints`). Adds the column `reserved`: whether the row, or
            the row that it is a sentence of, contains one of them.
        rejects: Policy for rows that cannot be read, that have other columns or an empty text; by default the first one
            raises an error.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows={max_rows}; give a number above 0, or leave it out for all rows")
    if sentences and kind not in ("text", "pairs"):
        raise ValueError(f"sentences=True is for text rows and pairs, and these are {kind} rows; leave it out")
    if instruction is not None and kind != "pairs":
        logger.warning("instruction=%r has no effect on %s rows", instruction, kind)
    layouts: dict[str, None] = {}  # matched columns, in order
    counts = {"read": 0, "dropped": 0, "elsewhere": 0}
    rejects = rejects or Rejects()

    def kept_of(row: dict[str, Any] | None, place: str) -> Iterator[dict[str, Any]]:
        marked = reserved is not None and row is not None and holds(row, reserved)
        for part in _parts(row, sentences):
            counts["read"] += 1
            if part is None:
                counts["elsewhere"] += 1
            elif part and _within(part, kind, min_chars, max_chars):
                check_filled(part, where=place)
                yield part if reserved is None else {**part, RESERVED: marked or holds(part, reserved)}
            else:
                counts["dropped"] += 1

    def rows() -> Iterator[dict[str, Any]]:
        for one in paths:
            folder = Path(expand(one))
            if is_beir(folder):
                for row, place in _beir_rows(folder, kind, split, instruction, where, layouts):
                    yield from kept_of(row, place)
                continue
            known: dict[tuple[str, ...], Layout] = {}  # rows of one file may differ in their optional columns
            for record in read(one, name=name, split=split, revision=revision, rejects=rejects):
                try:
                    several = _rows(record, kind, columns, where, instruction, instruct, known, layouts)
                    found = [part for row in several for part in kept_of(row, record.where)]
                except ValueError as error:
                    if not rejects.skips:
                        raise
                    reason = str(error).removeprefix(f"{record.where}: ")
                    rejects(Bad(record.source, record.number, record.where, reason))
                else:
                    rejects.good()
                    yield from found

    kept = rows() if max_rows is None or shuffle_seed is not None else islice(rows(), max_rows)
    dataset = _dataset(kept, kind, marked=reserved is not None)
    dataset.info.description = "\n".join(layouts)
    rejects.end()
    if rejects.count:
        files = ", ".join(f"{count:,} of {file}" for file, count in rejects.files.items())
        logger.warning(
            "%s: %d of %d rows cannot be used and are left out: %s", _names(paths), rejects.count, rejects.rows, files
        )
    if not counts["read"] or 0 < rejects.count == rejects.rows:
        raise ValueError(f"{_names(paths)} holds no rows" + (" that can be used" if rejects.count else ""))
    if not len(dataset):
        limits = {"min_chars": min_chars, "max_chars": max_chars, "where": where and dict(where)}
        said = ", ".join(f"{name}={value}" for name, value in limits.items() if value is not None)
        raise ValueError(
            f"{_names(paths)}: none of {counts['read']} rows has {said or 'what is asked for'}; widen the limits"
        )
    if counts["dropped"]:
        logger.info(
            "%s: %d of %d rows dropped by min_chars, max_chars or sentences",
            _names(paths),
            counts["dropped"],
            counts["read"],
        )
    if counts["elsewhere"]:
        logger.info("%s: %d of %d rows dropped by where", _names(paths), counts["elsewhere"], counts["read"])
    if shuffle_seed is not None:
        import numpy as np

        order = np.random.default_rng(shuffle_seed).permutation(len(dataset))
        dataset = dataset.select(order[:max_rows])
    return dataset


def _rows(
    record: Record,
    kind: Kind,
    mapping: Mapping[str, str] | None,
    where: Mapping[str, Any] | None,
    instruction: str | None,
    instruct: Literal["query", "both"],
    known: dict[tuple[str, ...], Layout],
    seen: dict[str, None],
) -> list[dict[str, Any] | None]:
    """Return the canonical rows of a record; None for one that `where` leaves out.

    `known` holds the layouts of the columns so far; matched columns are added to `seen`.
    """
    if where and not _holds(record, where):
        return [None]
    key = tuple(record.values)
    if key not in known:
        try:
            known[key] = match(key, kind, mapping=mapping, chosen=where or ())
        except ValueError as error:
            raise ValueError(f"{record.where}: {error}") from error
        seen[matched_columns(key, known[key])] = None
    return list(
        canonical_rows(record.values, known[key], kind, where=record.where, instruction=instruction, instruct=instruct)
    )


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
    whole = next((sentence for sentence in split_sentences(row["query"]) if row["positive"] in sentence), None)
    return [{} if whole is None else {**row, "positive": whole}]


def _holds(record: Record, where: Mapping[str, Any]) -> bool:
    for column in where:
        if column not in record.values:
            raise ValueError(
                f"{record.where}: where names the column {column!r}; the columns are {', '.join(record.values)}"
            )
    return all(_equals(record.values[column], value) for column, value in where.items())


def _equals(found: Any, wanted: bool | int | float | str) -> bool:
    """Whether a value is the wanted one; numbers and booleans may be written as text, as in CSV files."""
    if not isinstance(found, str) or isinstance(wanted, str):
        return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)
    if isinstance(wanted, bool):
        return found.strip().lower() == str(wanted).lower()
    try:
        return float(found) == wanted
    except ValueError:
        return False


def _within(row: Mapping[str, Any], kind: Kind, min_chars: int | None, max_chars: int | None) -> bool:
    if min_chars is None and max_chars is None:
        return True
    lengths = [len(row[column].strip()) for column in LENGTH_OF[kind]]
    return min(lengths) >= (min_chars or 0) and (max_chars is None or max(lengths) <= max_chars)


def _dataset(rows: Iterable[dict[str, Any]], kind: Kind, *, marked: bool) -> "Dataset":
    """Return rows as one in-memory Arrow table, built in blocks."""
    import datasets
    import pyarrow as pa
    from datasets.fingerprint import generate_random_fingerprint

    text, number = datasets.Value("string"), datasets.Value("float64")
    features = datasets.Features(
        {
            "text": {"text": text},
            "pairs": {
                "query": text,
                "positive": text,
                "negatives": datasets.List(text),
                "instruction": text,
                "document_instruction": text,
                "scores": datasets.List(number),
            },
            "scored": {"sentence1": text, "sentence2": text, "score": number, "subset": text},
            "labelled": {"text": text, "label": text},
            "labelled_pairs": {"sentence1": text, "sentence2": text, "label": text},
            "candidates": {"query": text, "positive": datasets.List(text), "negative": datasets.List(text)},
            "summaries": {
                "text": text,
                "human_summaries": datasets.List(text),
                "machine_summaries": datasets.List(text),
                "relevance": datasets.List(number),
            },
            "answered": {"question": text, "context": text, "answers": datasets.List(text)},
        }[kind]
        | ({RESERVED: datasets.Value("bool")} if marked else {})
    )
    schema, iterator = features.arrow_schema, iter(rows)
    tables = [schema.empty_table()]
    while piece := list(islice(iterator, 10_000)):
        tables.append(pa.Table.from_pylist(piece, schema=schema))
    info = datasets.DatasetInfo(features=features)
    unused = (
        generate_random_fingerprint()
    )  # names files of a cache that we do not write; otherwise all rows are pickled
    return datasets.Dataset(pa.concat_tables(tables), info=info, fingerprint=unused)


def _names(paths: Sequence[str | Path]) -> str:
    return ", ".join(str(path) for path in paths)
