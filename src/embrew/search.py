"""Search documents by meaning: an exact inner-product index of unit vectors, for the encoder that made it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from embrew.data.beir import Document, read_documents
from embrew.extras import import_extra
from embrew.files.checksums import content_hash, digest_of
from embrew.files.formats import INDEX, versions
from embrew.files.reading import read_json
from embrew.files.writing import atomic_folder, recover, write_json, write_jsonl
from embrew.progress import progress
from embrew.ranking import BM25, FUSION_DEPTH, reciprocal_rank_fusion
from embrew.text_encoder import (
    BLOCK,
    TextEncoder,
    checked_vectors,
    encode_options,
    model_hash,
    space_of,
    tokenizer_sha256,
    unit_vectors,
)

if TYPE_CHECKING:
    import faiss

REPAIR = "build the index again"
_INDEX, _DOCUMENTS = "index.faiss", "documents.jsonl"


@dataclass(frozen=True)
class Hit:
    """A document that was found, and its cosine with the query; of a hybrid search, its fused score."""

    document: Document
    score: float


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Counts of an update, compared with the older version.

    Attributes:
        kept: rows with a known id and the same text.
        changed: rows with a known id and another text.
        new: rows with a new id.
        dropped: ids that the newer version lacks.
        encoded: texts that this run encoded; known texts, also under another id, are not encoded again.
    """

    kept: int
    changed: int
    new: int
    dropped: int
    encoded: int = 0

    def __str__(self) -> str:
        return (
            f"{self.kept:,} rows kept, {self.changed:,} changed, {self.new:,} new, {self.dropped:,} dropped; "
            f"{self.encoded:,} texts encoded"
        )


class SearchIndex:
    """Documents and their vectors.

    Examples:
        >>> index = SearchIndex.build(encoder, read_documents("corpus.jsonl"))  # doctest: +SKIP
        >>> index.save("index")  # doctest: +SKIP
        >>> index = SearchIndex.load("index", encoder)  # doctest: +SKIP
        >>> [hit.document.title for hit in index.search(["shortest path"], top_k=3)[0]]  # doctest: +SKIP
    """

    def __init__(
        self,
        encoder: TextEncoder,
        documents: Sequence[Document],
        index: faiss.Index,
        *,
        query_options: Mapping[str, int] | None = None,
    ) -> None:
        self.encoder = encoder
        self.documents = list(documents)
        self.index = index
        self.query_options = dict(query_options or {})

    @classmethod
    def build(
        cls,
        encoder: TextEncoder,
        documents: Sequence[Document] | str | Path,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool = False,
    ) -> SearchIndex:
        """Embed documents (or those of a file or folder, see `read_documents`), title and text together."""
        _faiss()
        documents = _documents(documents, encoder)
        options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
        index: faiss.Index | None = None
        for vectors in _embedded(encoder, [document.content for document in documents], options):
            index = index or _empty_index(vectors.shape[1])
            index.add(vectors)
        assert index is not None, "there are documents"
        return cls(encoder, documents, index)

    @classmethod
    def of_vectors(
        cls,
        encoder: TextEncoder,
        documents: Sequence[Document],
        vectors: np.ndarray,
        *,
        query_options: Mapping[str, int] | None = None,
    ) -> SearchIndex:
        """Index vectors that the encoder gave earlier.

        Args:
            encoder: encodes the queries; `embrew.corpus.query_options` verifies that it made the vectors.
            documents: one per vector.
            vectors: `(documents, dimensions)`; that of a blank document may be zero.
            query_options: keywords for `encode_query`, such as `truncate_dim`.
        """
        if not documents or len(vectors) != len(documents):
            raise ValueError(f"{len(vectors)} vectors for {len(documents)} documents; give one vector per document")
        texts = [document.content for document in documents]
        vectors = checked_vectors(vectors, what="documents", texts=texts)
        index = _empty_index(vectors.shape[1])
        index.codes.resize(vectors.nbytes)  # reserve memory, which otherwise doubles on the way
        index.codes.resize(0)
        for start in range(0, len(vectors), BLOCK):
            block = slice(start, start + BLOCK)
            index.add(unit_vectors(vectors[block], what="documents", texts=texts[block]))
        return cls(encoder, documents, index, query_options=query_options)

    @cached_property
    def _bm25(self) -> BM25:
        texts = [document.content for document in self.documents]
        if not any(text.strip() for text in texts):
            raise ValueError("a hybrid search compares words, and these documents have no texts; give their corpus")
        return BM25(texts)

    def search(
        self, queries: Iterable[str], *, top_k: int = 10, hybrid: bool = False, batch_tokens: int | None = None
    ) -> list[list[Hit]]:
        """Return each query's `top_k` nearest documents, best first; equal scores in the order of the documents.

        Args:
            queries: texts.
            top_k: number of documents.
            hybrid: fuse the ranking by vectors with that of BM25, which is made of the texts at the first such search
                (`embrew.ranking.reciprocal_rank_fusion`).
            batch_tokens: padded tokens per batch.

        Raises:
            ValueError: `top_k` below 1; other dimensions than the index has; a hybrid search without texts.
        """
        if isinstance(queries, str):
            raise TypeError(f"queries={queries!r}; give a list of texts")
        if top_k < 1:
            raise ValueError(f"top_k={top_k}; give a number above 0")
        queries = list(queries)  # an array or a Series has no truth value
        if not queries:
            return []
        options = {**encode_options(self.encoder, batch_tokens=batch_tokens), **self.query_options}
        unit = unit_vectors(self.encoder.encode_query(queries, **options), what="queries", texts=queries)
        if unit.shape[1] != self.index.d:
            raise ValueError(
                f"the encoder gives {unit.shape[1]} dimensions, the index has {self.index.d}; "
                "set truncate_dim to the value that built the index, or build it again"
            )
        depth = min(max(top_k, FUSION_DEPTH) if hybrid else top_k, len(self.documents))
        results = []
        for scores, rows in zip(*self.index.search(unit, depth), strict=True):
            best = sorted(zip(scores, rows, strict=True), key=lambda pair: (-pair[0], pair[1]))
            results.append([(int(row), float(score)) for score, row in best])
        if hybrid:
            by_words = [
                [int(row) for score, row in zip(scores, rows, strict=True) if score > 0]
                for scores, rows in zip(*self._bm25.top(queries, depth), strict=True)
            ]
            by_vectors = [[row for row, _ in best] for best in results]
            results = [reciprocal_rank_fusion(both, top_k) for both in zip(by_vectors, by_words, strict=True)]
        return [[Hit(self.documents[row], score) for row, score in best] for best in results]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the index, the documents and a manifest atomically."""
        with atomic_folder(Path(folder), marker=INDEX.file, overwrite=overwrite) as new:
            _faiss().write_index(self.index, str(new / _INDEX))
            write_jsonl(new / _DOCUMENTS, (asdict(document) for document in self.documents))
            manifest = {
                "format": INDEX.number,
                "encoder_hash": model_hash(self.encoder),
                "tokenizer_sha256": tokenizer_sha256(self.encoder),
                "documents": len(self.documents),
                "dimensions": self.index.d,
                "query_options": self.query_options,
                "files": {name: content_hash([new / name]) for name in (_INDEX, _DOCUMENTS)},
                "versions": versions(),
            }
            write_json(new / INDEX.file, {**manifest, "sha256": digest_of(manifest)})

    @classmethod
    def load(cls, folder: str | Path, encoder: TextEncoder) -> SearchIndex:
        """Open a saved index with the encoder that made it; another encoder is refused.

        Raises:
            FileNotFoundError: there is no index.
            ValueError: another encoder made it, or a file is missing or has changed since it was written.
        """
        faiss = _faiss()
        folder = Path(folder)
        recover(folder)
        if not (folder / INDEX.file).is_file():
            raise FileNotFoundError(
                f"{folder} holds no search index (no {INDEX.file}); make one with SearchIndex.build"
            )
        manifest = read_json(folder / INDEX.file, keys=("sha256",), kind=INDEX, repair=REPAIR)
        if manifest.pop("sha256") != digest_of(manifest):
            raise ValueError(f"{folder / INDEX.file} has changed since it was written; {REPAIR}")
        space = space_of(encoder)
        current = space or model_hash(encoder)
        if manifest["encoder_hash"] != current:
            raise ValueError(
                f"{folder} was built with the encoder {manifest['encoder_hash'][:12]}, this is {current[:12]} "
                "(hashes); their vectors cannot be compared: give the encoder that built the index, or build it again"
            )
        if space is None and manifest["tokenizer_sha256"] != tokenizer_sha256(encoder):
            raise ValueError(
                f"{folder} was built with the same weights and another tokenizer; give the encoder that built the "
                "index, or build it again"
            )
        for name in (_INDEX, _DOCUMENTS):
            if not (folder / name).is_file() or content_hash([folder / name]) != manifest["files"].get(name):
                raise ValueError(f"{folder / name} is missing or has changed since it was written; {REPAIR}")
        lines = (folder / _DOCUMENTS).read_text(encoding="utf-8").split("\n")
        documents = [Document(**json.loads(line)) for line in lines if line]
        index = faiss.read_index(str(folder / _INDEX))
        return cls(encoder, documents, index, query_options=manifest["query_options"])

    def updated(
        self,
        documents: Sequence[Document] | str | Path,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool = False,
    ) -> tuple[SearchIndex, Changes]:
        """Return an index of a newer version of the documents, and what has changed; this index is not modified.

        A document whose title and text are in this index keeps its vector, also under another id; others are embedded.
        """
        documents = _documents(documents, self.encoder)
        rows = {document.id: row for row, document in enumerate(self.documents)}
        same = [
            document.id in rows and self.documents[rows[document.id]].content == document.content
            for document in documents
        ]
        texts = {document.content: row for row, document in reversed([*enumerate(self.documents)])}
        new = list(dict.fromkeys(document.content for document in documents if document.content not in texts))
        options = encode_options(self.encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
        blocks = _embedded(self.encoder, new, {**options, **self.query_options})
        vectors = np.concatenate([self.index.reconstruct_n(0, len(self.documents)), *blocks])
        texts |= {text: len(self.documents) + number for number, text in enumerate(new)}
        index = _empty_index(self.index.d)
        sources = [
            rows[document.id] if is_same else texts[document.content]
            for document, is_same in zip(documents, same, strict=True)
        ]
        index.add(vectors[sources])
        shared = sum(document.id in rows for document in documents)
        changes = Changes(
            kept=sum(same),
            changed=shared - sum(same),
            new=len(documents) - shared,
            dropped=len(self.documents) - shared,
            encoded=len(new),
        )
        return SearchIndex(self.encoder, documents, index, query_options=self.query_options), changes


def _documents(documents: Sequence[Document] | str | Path, encoder: TextEncoder) -> Sequence[Document]:
    """Return documents to index; raise if there are none, or for an encoder of queries only."""
    if isinstance(documents, str | Path):
        documents = read_documents(documents)
    if not documents:
        raise ValueError("no documents to index")
    if space_of(encoder):
        raise ValueError(
            "this encoder was trained to encode queries, for documents of another model; build and update the index "
            "with that model"
        )
    return documents


def _faiss() -> ModuleType:
    return import_extra("faiss", "search", "an index of documents")


def _empty_index(dimensions: int) -> faiss.IndexFlatIP:
    return _faiss().IndexFlatIP(dimensions)


def _embedded(encoder: TextEncoder, texts: Sequence[str], options: Mapping[str, object]) -> Iterator[np.ndarray]:
    """Yield unit vectors of documents, `BLOCK` at a time."""
    with progress(len(texts), "encode", "text", show=bool(options["show_progress_bar"])) as bar:
        for start in range(0, len(texts), BLOCK):
            block = texts[start : start + BLOCK]
            with bar.shared():
                vectors = encoder.encode_document(block, **options)
            yield unit_vectors(vectors, what="documents", texts=block)
            bar.reach(start + len(block))
