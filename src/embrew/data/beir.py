"""Read documents, and retrieval data in BEIR's layout: `corpus.jsonl`, `queries.jsonl`, and `qrels/SPLIT.tsv`."""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from embrew.data.fingerprints import normalised
from embrew.data.formats import Record, read_file
from embrew.data.reading import corpus_files, expand, find_file, id_prefixes, qrels_file, read
from embrew.files.checksums import check_listed
from embrew.files.reading import content_of


@dataclass(frozen=True)
class Document:
    """A text with an id and a title."""

    id: str
    text: str
    title: str = ""

    @property
    def content(self) -> str:
        """Text that is embedded: title and text joined by a space, or the text alone; white space is not changed."""
        return " ".join(part for part in (self.title, self.text) if part)


def read_documents(path: str | Path) -> list[Document]:
    """Return the documents of a BEIR folder, or of rows with `text` (and `_id` or `id`, `title`).

    Rows without an id get their row number, after the file's name where there are several. Ids must be unique.
    """
    folder = Path(expand(path))
    if folder.exists():
        files = corpus_files(folder)
        prefixes = zip(files, id_prefixes(files, folder), strict=True)
        documents = [document for file, prefix in prefixes for document in documents_of(read_file(file), prefix)]
    else:
        documents = list(documents_of(read(path)))
    if not documents:
        raise ValueError(f"{folder} holds no documents")
    check_unique(documents, folder)
    return documents


def check_unique(documents: Sequence[Document], source: Path) -> None:
    """Raise if two documents of a place have the same id."""
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise ValueError(f"{source}: two documents have the id {document.id!r}; make ids unique")
        seen.add(document.id)


def record_id(record: Record, prefix: str = "") -> str:
    """Return the `_id` or `id` of a row as text; its number, after a prefix, if it has no such column.

    Raises:
        ValueError: its id is null, or neither a text nor an integer.
    """
    for column in ("_id", "id"):
        value = record.get(column)
        if value is None and column in record.values:
            raise ValueError(f"{record.where}: {column} is null; give every row an id, or leave the column out")
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            raise ValueError(f"{record.where}: {column} is a {type(value).__name__}; ids are texts or integers")
    return f"{prefix}{record.number}"


def documents_of(records: Iterable[Record], prefix: str = "") -> Iterator[Document]:
    """Yield the documents of rows with `text` (and `_id` or `id`, `title`); `prefix` is that of numbers for ids."""
    for record in records:
        text, title = record.get("text"), record.get("title")
        if not isinstance(text, str) or not isinstance(title, str | None):
            columns = ", ".join(record.values)
            raise ValueError(
                f"{record.where}: a document needs a column text (and may have _id, title); found {columns}"
            )
        yield Document(id=record_id(record, prefix), text=text, title=title or "")


@dataclass(frozen=True)
class RetrievalData:
    """Retrieval data of one split.

    Attributes:
        corpus: all documents.
        queries: texts of the queries that have judgements in the split, by id.
        qrels: relevance grades, by query and document.
        ignore_identical_ids: whether a document with a query's id is a self-match whatever its text, judged or not, as
            in mteb's tasks with this attribute.
    """

    corpus: Sequence[Document]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    ignore_identical_ids: bool = False

    @cached_property
    def self_matches(self) -> frozenset[str]:
        """Ids that a query shares with a document that is not ranked for it: its own text, and not judged for it."""
        return frozenset(
            document.id
            for document in self.corpus
            if document.id in self.queries and (self.ignore_identical_ids or self._is_self_match(document))
        )

    def _is_self_match(self, document: Document) -> bool:
        text = normalised(self.queries[document.id])
        is_same = text in (normalised(document.text), normalised(document.content))
        return is_same and document.id not in self.qrels.get(document.id, {})


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read grades by query and document from lines `query-id <tab> corpus-id <tab> grade`, with or without a header."""
    check_listed(path)
    qrels: dict[str, dict[str, int]] = {}
    content = path.read_bytes()
    with content_of(path, also=(EOFError, zlib.error, gzip.BadGzipFile)):
        text = (gzip.decompress(content) if path.name.endswith(".gz") else content).decode("utf-8")
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        fields = line.rstrip("\r\n").split("\t")
        if not line.strip() or (number == 1 and fields[-1].strip() in ("score", "relevance")):
            continue
        try:
            query, document, grade = fields
            qrels.setdefault(query, {})[document] = int(grade)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: expected query-id, corpus-id and an integer, separated by tabs"
            ) from error
    return qrels


def read_beir(folder: Path, split: str) -> RetrievalData:
    """Read a BEIR folder; queries without a judgement in `split` are left out."""
    qrels = read_qrels(qrels_file(folder, split))
    queries_file = find_file(folder, "queries")
    if queries_file is None:
        raise FileNotFoundError(f"{folder} has no queries.jsonl or queries.jsonl.gz")
    queries: dict[str, str] = {}
    for record in read_file(queries_file):
        name, text = record_id(record), record.get("text")
        if not isinstance(text, str):
            raise ValueError(f"{record.where}: a query needs a column text; found {', '.join(record.values)}")
        if name in qrels:
            queries[name] = text
    missing = sorted(set(qrels) - set(queries))
    if missing:
        raise ValueError(
            f"{folder}: the judgements of split {split!r} name {len(missing)} queries that do not exist, e.g. "
            f"{missing[0]!r}"
        )
    corpus = read_documents(folder)
    relevant = {document for grades in qrels.values() for document, grade in grades.items() if grade > 0}
    if relevant and relevant.isdisjoint(document.id for document in corpus):
        raise ValueError(
            f"{folder}: the judgements of split {split!r} name no document of the corpus (e.g. {min(relevant)!r}; the "
            f"corpus has ids such as {corpus[0].id!r}); give both the same ids"
        )
    return RetrievalData(corpus=corpus, queries=queries, qrels=qrels)
