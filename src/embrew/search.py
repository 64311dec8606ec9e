"""Search documents by meaning: an exact inner-product index of unit vectors, for the encoder that made it."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embrew.data.beir import Document, read_documents
from embrew.files.checksums import content_hash, digest_of
from embrew.files.formats import INDEX, versions
from embrew.files.reading import content_of, read_json
from embrew.files.writing import atomic_folder, check_free, recover, write_json, write_jsonl
from embrew.progress import progress
from embrew.text_encoder.hashes import model_hash, tokenizer_sha256
from embrew.text_encoder.interface import TextEncoder, encode_options
from embrew.text_encoder.vectors import BLOCK, checked_vectors, unit_vectors

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
REPAIR = "build the index again"
_INDEX, _DOCUMENTS = "index.faiss", "documents.jsonl"


@dataclass(frozen=True)
class Hit:
    """A document that was found, and its cosine with the query."""

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
        index: Any,
        *,
        encoder_hash: str,
        query_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.encoder = encoder
        self.documents = list(documents)
        self.index = index
        self.encoder_hash = encoder_hash
        self.query_options = dict(query_options or {})

    @classmethod
    def build(
        cls,
        encoder: TextEncoder,
        documents: Sequence[Document] | str | Path,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool = False,
        chunk_size: int = 8192,
    ) -> "SearchIndex":
        """Embed documents (or those of a file or folder, see `read_documents`), title and text together."""
        import faiss

        if isinstance(documents, str | Path):
            documents = read_documents(documents)
        if not documents:
            raise ValueError("no documents to index")
        options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
        index = None
        with progress(len(documents), "encode", "text", shown=show_progress_bar) as bar:
            for start in range(0, len(documents), chunk_size):
                texts = [document.content for document in documents[start : start + chunk_size]]
                with bar.shared():
                    vectors = unit_vectors(encoder.encode_document(texts, **options), what="documents", texts=texts)
                index = index or faiss.IndexFlatIP(vectors.shape[1])
                index.add(vectors)
                bar.reach(start + len(texts))
        return cls(encoder, documents, index, encoder_hash=model_hash(encoder))

    @classmethod
    def of_vectors(
        cls,
        encoder: TextEncoder,
        documents: Sequence[Document],
        vectors: Any,
        *,
        query_options: Mapping[str, Any] | None = None,
        unit: bool = False,
    ) -> "SearchIndex":
        """Index vectors that the encoder gave earlier.

        Args:
            encoder: encodes the queries; `embrew.corpus.query_options` verifies that it made the vectors.
            documents: one per vector.
            vectors: `(documents, dimensions)`; that of a blank document may be zero.
            query_options: keywords for `encode_query`, such as `truncate_dim`.
            unit: the vectors come from an index, have length 1 already, and are not changed.
        """
        import faiss

        if not documents or len(vectors) != len(documents):
            raise ValueError(f"{len(vectors)} vectors for {len(documents)} documents; give one vector per document")
        if not unit:
            vectors = checked_vectors(vectors, what="documents", texts=[document.content for document in documents])
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.codes.resize(vectors.nbytes)  # reserve memory, which otherwise doubles on the way
        index.codes.resize(0)
        for start in range(0, len(vectors), BLOCK):
            block = vectors[start : start + BLOCK]
            texts = [document.content for document in documents[start : start + BLOCK]]
            index.add(block if unit else unit_vectors(block, what="documents", texts=texts))
        return cls(encoder, documents, index, encoder_hash=model_hash(encoder), query_options=query_options)

    def search(self, queries: Iterable[str], *, top_k: int = 10, batch_tokens: int | None = None) -> list[list[Hit]]:
        """Return each query's `top_k` nearest documents, best first; equal scores in the order of the documents."""
        if isinstance(queries, str):
            raise TypeError(f"queries={queries!r}; give a list of texts")
        if top_k < 1:
            raise ValueError(f"top_k={top_k}; give a number above 0")
        queries = list(queries)  # an array or a Series has no truth value
        if not queries:
            return []
        options = {**encode_options(self.encoder, batch_tokens=batch_tokens), **self.query_options}
        vectors = self.encoder.encode_query(queries, **options)
        unit = unit_vectors(vectors, what="queries", texts=queries)
        if unit.shape[1] != self.index.d:
            raise ValueError(
                f"the encoder gives {unit.shape[1]} dimensions, the index has {self.index.d}; "
                "set truncate_dim to the value that built the index, or build it again"
            )
        found = self.index.search(unit, min(top_k, len(self.documents)))
        return [
            [
                Hit(self.documents[i], float(score))
                for score, i in sorted(zip(*row, strict=True), key=lambda x: (-x[0], x[1]))
            ]
            for row in zip(*found, strict=True)
        ]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the index, the documents and a manifest atomically."""
        import faiss

        with atomic_folder(Path(folder), marker=MANIFEST, overwrite=overwrite) as new:
            faiss.write_index(self.index, str(new / _INDEX))
            write_jsonl(new / _DOCUMENTS, (asdict(document) for document in self.documents))
            manifest = {
                "format": INDEX.number,
                "encoder_hash": self.encoder_hash,
                "tokenizer_sha256": tokenizer_sha256(self.encoder),
                "documents": len(self.documents),
                "dimensions": self.index.d,
                "query_options": self.query_options,
                "files": {name: content_hash([new / name]) for name in (_INDEX, _DOCUMENTS)},
                "versions": versions(),
            }
            write_json(new / MANIFEST, {**manifest, "sha256": digest_of(manifest)})

    @classmethod
    def load(cls, folder: str | Path, encoder: TextEncoder) -> "SearchIndex":
        """Open a saved index with the encoder that made it; another encoder is refused.

        Raises:
            FileNotFoundError: there is no index.
            ValueError: another encoder made it, or a file is missing or has changed since it was written.
        """
        import faiss

        folder = Path(folder)
        recover(folder)
        if not (folder / MANIFEST).is_file():
            raise FileNotFoundError(f"{folder} holds no search index (no {MANIFEST}); make one with SearchIndex.build")
        keys = ("encoder_hash", "tokenizer_sha256", "files", "documents", "dimensions", "query_options", "sha256")
        manifest = read_json(folder / MANIFEST, keys=keys, kind=INDEX, repair=REPAIR)
        if manifest.pop("sha256") != digest_of(manifest):
            raise ValueError(f"{folder / MANIFEST} has changed since it was written; {REPAIR}")
        own = model_hash(encoder)
        if manifest["encoder_hash"] != own:
            raise ValueError(
                f"{folder} was built with the encoder {manifest['encoder_hash'][:12]}, this is {own[:12]} (hashes); "
                "their vectors cannot be compared: give the encoder that built the index, or build it again"
            )
        if manifest["tokenizer_sha256"] != tokenizer_sha256(encoder):
            raise ValueError(
                f"{folder} was built with the same weights and another tokenizer; give the encoder that built the "
                "index, or build it again"
            )
        if set(manifest["files"]) != {_INDEX, _DOCUMENTS}:
            raise ValueError(
                f"{folder / MANIFEST} lists other files than {_INDEX} and {_DOCUMENTS}; build the index again"
            )
        for name, expected in manifest["files"].items():
            if not (folder / name).is_file() or content_hash([folder / name]) != expected:
                raise ValueError(
                    f"{folder / name} is missing or has changed since it was written; build the index again"
                )
        with content_of(folder / _DOCUMENTS, repair=REPAIR):
            lines = (folder / _DOCUMENTS).read_text(encoding="utf-8").split("\n")
            documents = [Document(**json.loads(line)) for line in lines if line]
        with content_of(folder / _INDEX, repair=REPAIR, also=(RuntimeError,)):
            index = faiss.read_index(str(folder / _INDEX))
        if (index.ntotal, index.ntotal, index.d) != (len(documents), manifest["documents"], manifest["dimensions"]):
            raise ValueError(
                f"{folder / MANIFEST} says {manifest['documents']} documents of {manifest['dimensions']} dimensions; "
                f"{_INDEX} holds {index.ntotal} of {index.d}, {_DOCUMENTS} {len(documents)}; {REPAIR}"
            )
        return cls(encoder, documents, index, encoder_hash=own, query_options=manifest["query_options"])

    def updated(
        self,
        documents: Sequence[Document] | str | Path,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool = False,
        chunk_size: int = 8192,
    ) -> "tuple[SearchIndex, Changes]":
        """Return an index of a newer version of the documents, and what has changed; this index is not modified.

        A document whose title and text are in this index keeps its vector, also under another id; others are embedded.
        """
        if isinstance(documents, str | Path):
            documents = read_documents(documents)
        by_id = {document.id: i for i, document in enumerate(self.documents)}
        by_text: dict[str, int] = {}
        for i, document in enumerate(self.documents):
            by_text.setdefault(document.content, i)
        known = [by_id.get(document.id) for document in documents]
        same = [
            i is not None and self.documents[i].content == document.content
            for i, document in zip(known, documents, strict=True)
        ]
        new = list(dict.fromkeys(document.content for document in documents if document.content not in by_text))
        vectors = np.empty((len(self.documents) + len(new), self.index.d), dtype=np.float32)
        vectors[: len(self.documents)] = self.index.reconstruct_n(0, len(self.documents))
        options = encode_options(self.encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
        with progress(len(new), "encode", "text", shown=show_progress_bar) as bar:
            for start in range(0, len(new), chunk_size):
                texts = new[start : start + chunk_size]
                with bar.shared():
                    found = self.encoder.encode_document(texts, **options, **self.query_options)
                unit = unit_vectors(found, what="documents", texts=texts)
                vectors[len(self.documents) + start :][: len(texts)] = unit
                bar.reach(start + len(texts))
        by_text |= {text: len(self.documents) + i for i, text in enumerate(new)}
        places = [
            i if is_same and i is not None else by_text[document.content]
            for i, is_same, document in zip(known, same, documents, strict=True)
        ]
        index = SearchIndex.of_vectors(
            self.encoder, documents, vectors[places], query_options=self.query_options, unit=True
        )
        had = sum(i is not None for i in known)
        changes = Changes(
            kept=sum(same),
            changed=had - sum(same),
            new=len(documents) - had,
            dropped=len(self.documents) - had,
            encoded=len(new),
        )
        return index, changes


def build_index(
    encoder: TextEncoder,
    documents: str | Path,
    folder: str | Path,
    *,
    overwrite: bool = False,
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> SearchIndex:
    """Read documents, embed them and save the index; a folder that cannot be written is refused first."""
    check_free(Path(folder), marker=MANIFEST, overwrite=overwrite)
    index = SearchIndex.build(encoder, documents, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    index.save(folder, overwrite=overwrite)
    logger.info("indexed %d documents into %s", len(index.documents), folder)
    return index


def update_index(
    encoder: TextEncoder,
    documents: str | Path,
    folder: str | Path,
    *,
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> tuple[SearchIndex, Changes]:
    """Update a saved index to a newer version of its documents, atomically; see `SearchIndex.updated`."""
    old = SearchIndex.load(folder, encoder)
    index, changes = old.updated(documents, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    index.save(folder, overwrite=True)
    return index, changes
