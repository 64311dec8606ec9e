"""Load training and evaluation data as `datasets.Dataset` of canonical rows."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embrew.data.beir import is_beir, read_beir
from embrew.data.columns import LENGTH_OF, Kind, Layout, canonical_rows, check_filled, match, understood
from embrew.data.reading import expand, read

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
    instruction: str | None = None,
    min_chars: int | None = None,
    max_chars: int | None = None,
    max_rows: int | None = None,
    shuffle_seed: int | None = None,
) -> "Dataset":
    """Read `path`, bring its rows into the canonical columns of `kind`, filter, shuffle, and take the first rows.

    Args:
        path: A file, a folder, a BEIR folder (pairs), a data set of the Hub, or several of them, one after another.
        kind: `text`, `pairs` or `scored` rows, see `embrew.data.columns`.
        split: The files of a folder, the judgements of a BEIR folder, or the split on the Hub.
        columns: Canonical column -> column in the file, for names that are not understood by themselves.
        instruction: Written into every pair, in place of the rows' own.
        min_chars: Rows with a shorter text are dropped (pairs: query or positive; white space around does not count).
        max_chars: Rows with a longer text are dropped.
        max_rows: Rows kept, after filters and shuffle.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows={max_rows}; give a number above 0, or leave it out for all rows")
    if instruction is not None and kind != "pairs":
        logger.warning("instruction=%r has no effect on %s rows", instruction, kind)
    layouts: dict[str, None] = {}  # what was understood, in order
    counts = {"read": 0, "dropped": 0}

    def rows() -> Iterator[dict[str, Any]]:
        for one in paths:
            for row, where in _rows(one, kind, name, split, revision, columns, instruction, layouts):
                counts["read"] += 1
                if _within(row, kind, min_chars, max_chars):
                    check_filled(row, where=where)
                    yield row
                else:
                    counts["dropped"] += 1

    kept = rows() if max_rows is None or shuffle_seed is not None else islice(rows(), max_rows)
    dataset = _dataset(kept, kind)
    dataset.info.description = "\n".join(layouts)
    if not counts["read"]:
        raise ValueError(f"{_names(paths)} holds no rows")
    if not len(dataset):
        raise ValueError(
            f"{_names(paths)}: none of {counts['read']} rows has min_chars={min_chars}, max_chars={max_chars}; "
            "widen the limits"
        )
    if counts["dropped"]:
        logger.info("%s: %d of %d rows dropped by length", _names(paths), counts["dropped"], counts["read"])
    if shuffle_seed is not None:
        import numpy as np

        order = np.random.default_rng(shuffle_seed).permutation(len(dataset))
        dataset = dataset.select(order[:max_rows])
    return dataset


def _rows(
    path: str | Path,
    kind: Kind,
    name: str | None,
    split: str,
    revision: str | None,
    mapping: Mapping[str, str] | None,
    instruction: str | None,
    seen: dict[str, None],
) -> Iterator[tuple[dict[str, Any], str]]:
    """Canonical rows and where each came from; what was understood goes into `seen`."""
    folder = Path(expand(path))
    if is_beir(folder):
        seen["query <- queries; positive <- corpus, title and text, by the qrels"] = None
        yield from _beir_rows(folder, kind, split, instruction)
        return
    layouts: dict[tuple[str, ...], Layout] = {}  # rows of one file may differ in their optional columns
    for record in read(path, name=name, split=split, revision=revision):
        key = tuple(record.values)
        if key not in layouts:
            try:
                layouts[key] = match(key, kind, mapping=mapping)
            except ValueError as error:
                raise ValueError(f"{record.where}: {error}") from error
            seen[understood(key, layouts[key])] = None
        for row in canonical_rows(record.values, layouts[key], kind, where=record.where, instruction=instruction):
            yield row, record.where


def _beir_rows(folder: Path, kind: Kind, split: str, instruction: str | None) -> Iterator[tuple[dict[str, Any], str]]:
    if kind != "pairs":
        raise ValueError(f"{folder} is a BEIR folder, which gives pairs; for {kind} rows name a file in it")
    data = read_beir(folder, split)
    texts = {document.id: document.content for document in data.corpus}
    for query, grades in data.qrels.items():
        for document, grade in grades.items():
            if grade > 0:
                where = f"{folder}, query {query!r} and document {document!r}"
                if document not in texts:
                    raise ValueError(f"{where}: the document is not in the corpus; mend the qrels")
                yield (
                    {
                        "query": data.queries[query],
                        "positive": texts[document],
                        "negatives": [],
                        "instruction": instruction,
                    },
                    where,
                )


def _within(row: Mapping[str, Any], kind: Kind, min_chars: int | None, max_chars: int | None) -> bool:
    if min_chars is None and max_chars is None:
        return True
    lengths = [len(row[column].strip()) for column in LENGTH_OF[kind]]
    return min(lengths) >= (min_chars or 0) and (max_chars is None or max(lengths) <= max_chars)


def _dataset(rows: Iterable[dict[str, Any]], kind: Kind) -> "Dataset":
    """Rows as one in-memory Arrow table, built in pieces."""
    import datasets
    import pyarrow as pa

    text = datasets.Value("string")
    features = datasets.Features(
        {
            "text": {"text": text},
            "pairs": {"query": text, "positive": text, "negatives": datasets.List(text), "instruction": text},
            "scored": {"sentence1": text, "sentence2": text, "score": datasets.Value("float64"), "subset": text},
        }[kind]
    )
    schema, iterator = features.arrow_schema, iter(rows)
    tables = [schema.empty_table()]
    while piece := list(islice(iterator, 10_000)):
        tables.append(pa.Table.from_pylist(piece, schema=schema))
    info = datasets.DatasetInfo(features=features)
    return datasets.Dataset(pa.concat_tables(tables), info=info)


def _names(paths: Sequence[str | Path]) -> str:
    return ", ".join(str(path) for path in paths)
