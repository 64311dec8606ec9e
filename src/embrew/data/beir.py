"""Read retrieval data in BEIR's layout: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv` or `qrels.SPLIT.tsv`."""

import gzip
import io
import zlib
from dataclasses import dataclass
from pathlib import Path

from embrew.data.documents import Document, read_documents, text_id
from embrew.data.formats import read_file
from embrew.data.reading import find_file
from embrew.files.reading import content_of


@dataclass(frozen=True)
class RetrievalData:
    """A corpus, queries by id, and relevance grades by query and document of one split."""

    corpus: list[Document]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]


def is_beir(folder: Path) -> bool:
    """Return whether a folder holds a corpus and queries."""
    return folder.is_dir() and all(find_file(folder, name) for name in ("corpus", "queries"))


def qrels_files(folder: Path) -> dict[str, Path]:
    """Return the files of relevance judgements by split."""
    files: dict[str, Path] = {}
    for pattern, prefix in (("qrels/*.tsv*", ""), ("qrels.*.tsv*", "qrels.")):
        for file in sorted(folder.glob(pattern)):
            if file.name.endswith((".tsv", ".tsv.gz")):
                split = file.name.removesuffix(".gz").removesuffix(".tsv").removeprefix(prefix)
                if split in files:
                    raise ValueError(f"{folder} has the split {split!r} twice: {files[split].name} and {file.name}")
                files[split] = file
    return files


def qrels_file(folder: Path, split: str) -> Path:
    """Return the file of relevance judgements of a split."""
    files = qrels_files(folder)
    if split not in files:
        raise FileNotFoundError(f"{folder} has no qrels for split {split!r}; it has {', '.join(files) or 'none'}")
    return files[split]


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read grades by query and document from lines `query-id <tab> corpus-id <tab> grade`, with or without a header."""
    qrels: dict[str, dict[str, int]] = {}
    content = path.read_bytes()
    with content_of(path, also=(EOFError, zlib.error, gzip.BadGzipFile)):
        text = (gzip.decompress(content) if path.name.endswith(".gz") else content).decode("utf-8")
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        fields = line.rstrip("\r\n").split("\t")
        if number == 1 and fields[-1].strip() in ("score", "relevance"):
            continue
        if not line.strip():
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
        name, text = text_id(record, "_id", "id"), record.get("text")
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
