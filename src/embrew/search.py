"""Search documents by meaning: an exact inner-product index of unit vectors, for the encoder that made it.

Vectors and documents lie in blocks of rows (`embrew.data.blocks`), and `rows.npy` holds the position of each document
in them, in the order of the documents. Documents that an update drops stay in their block, and are not found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np

from embrew.data.beir import Document, read_documents
from embrew.data.blocks import ROWS, Block, Blocks, Documents, StoredBlock, block_files, in_blocks
from embrew.extras import import_extra
from embrew.files.checksums import digest_of, file_sha256
from embrew.files.formats import INDEX, versions
from embrew.files.mapped import MappedFile
from embrew.files.reading import content_of, read_json
from embrew.files.writing import atomic_folder, read_unchanged, recover, write_json
from embrew.passport.of_index import PassportFiles, fault_between, passport_sha256, read_files, write_files
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

REPAIR = "build the index again"
Verify = Literal["fast", "full"]
ORDER = "rows.npy"
_KEYS = (
    *("encoder_hash", "tokenizer_sha256", "passport", "documents", "dimensions", "query_options", "blocks", "files"),
    "sha256",
)
_SMALL, _MOST_SMALL = ROWS // 2, 32  # rows of a small block; more small blocks than that are written as one


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

    An index that was built holds its vectors and texts in memory; one that was opened reads them from its folder.

    Attributes:
        encoder: encodes queries, and new documents.
        documents: the documents in their order; those of an opened index are read from its folder when asked for.
        query_options: keywords for `encode_query`, such as `truncate_dim`.
        passport: files of the encoder's passport, which are saved with the index, or None; by these an opening with
            another encoder names the fault. `embrew.opening.passport_files` returns them.

    Examples:
        >>> index = SearchIndex.build(encoder, read_documents("corpus.jsonl"))  # doctest: +SKIP
        >>> index.save("index")  # doctest: +SKIP
        >>> index = SearchIndex.load("index", encoder)  # doctest: +SKIP
        >>> [hit.document.title for hit in index.search(["shortest path"], top_k=3)[0]]  # doctest: +SKIP
    """

    def __init__(
        self,
        encoder: TextEncoder,
        blocks: Sequence[Block | StoredBlock],
        rows: np.ndarray,
        *,
        query_options: Mapping[str, int] | None = None,
        passport: PassportFiles | None = None,
    ) -> None:
        self.encoder, self.passport = encoder, passport
        self.query_options = dict(query_options or {})
        self._blocks, self._rows = Blocks(blocks), rows
        self.documents = Documents(self._blocks, rows)
        self._numbers = np.full(self._blocks.starts[-1], len(rows))  # of the document in each row; last: dropped
        self._numbers[rows] = np.arange(len(rows))

    @classmethod
    def build(
        cls,
        encoder: TextEncoder,
        documents: Sequence[Document] | str | Path,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool = False,
    ) -> SearchIndex:
        """Embed documents (or those of a file or folder, see `read_documents`), title and text together.

        All documents and vectors are held in memory, once.
        """
        _faiss()
        documents = _documents(documents, encoder)
        options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
        vectors = np.empty((0, 0), dtype=np.float32)
        for part, encoded in _embedded(encoder, documents, options):
            vectors = vectors if len(vectors) else np.empty((len(documents), encoded.shape[1]), dtype=np.float32)
            vectors[part] = encoded
        return cls(encoder, in_blocks(vectors, documents), np.arange(len(documents)))

    @classmethod
    def of_vectors(
        cls,
        encoder: TextEncoder,
        documents: Sequence[Document],
        vectors: np.ndarray,
        *,
        query_options: Mapping[str, int] | None = None,
        copy: bool = True,
    ) -> SearchIndex:
        """Index vectors that the encoder gave earlier.

        Args:
            encoder: encodes the queries; `embrew.corpus.query_options` verifies that it made the vectors.
            documents: one per vector.
            vectors: `(documents, dimensions)`; that of a blank document may be zero.
            query_options: keywords for `encode_query`, such as `truncate_dim`.
            copy: copy the vectors; False: where they are float32, the index keeps this array and scales it to unit
                vectors.
        """
        _faiss()
        if not documents or len(vectors) != len(documents):
            raise ValueError(f"{len(vectors)} vectors for {len(documents)} documents; give one vector per document")
        texts = [document.content for document in documents]
        array = checked_vectors(vectors, what="documents", texts=texts)
        array = np.array(array, order="C", copy=copy or None)
        for start in range(0, len(array), BLOCK):
            part = slice(start, start + BLOCK)
            array[part] = unit_vectors(array[part], what="documents", texts=texts[part])
        return cls(encoder, in_blocks(array, documents), np.arange(len(documents)), query_options=query_options)

    @property
    def dimensions(self) -> int:
        """Dimensions of a vector."""
        return self._blocks.blocks[0].shape[1]

    def vectors(self, start: int, stop: int) -> np.ndarray:
        """Return a copy of the unit vectors of the documents `start` to `stop` - 1, `(documents, dimensions)`."""
        return self._blocks.vectors(self._rows[start:stop])

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
            hybrid: fuse the ranking by vectors with that of BM25 (`embrew.ranking.reciprocal_rank_fusion`). The first
                such search reads all texts and makes BM25's index in memory, which takes about ten times their size.
            batch_tokens: padded tokens per batch.

        Raises:
            ValueError: `top_k` below 1; other dimensions than the index has; a hybrid search without texts; a block
                that is read for the first time is damaged.
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
        self._check_width(unit.shape[1])
        depth = min(max(top_k, FUSION_DEPTH) if hybrid else top_k, len(self.documents))
        ranked = zip(*(array.tolist() for array in self.nearest(unit, depth)), strict=True)
        results = [
            [(number, score) for score, number in zip(*best, strict=True) if number < len(self.documents)]
            for best in ranked
        ]
        if hybrid:
            by_words = [
                [int(row) for score, row in zip(scores, rows, strict=True) if score > 0]
                for scores, rows in zip(*self._bm25.top(queries, depth), strict=True)
            ]
            by_vectors = [[row for row, _ in best] for best in results]
            results = [reciprocal_rank_fusion(both, top_k) for both in zip(by_vectors, by_words, strict=True)]
        wanted = np.unique(np.array([number for best in results for number, _ in best], dtype=np.int64))
        documents = dict(zip(wanted.tolist(), self._blocks.documents(self._rows[wanted]), strict=True))
        return [[Hit(documents[number], score) for number, score in best] for best in results]

    def nearest(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and numbers of the `k` nearest documents, `(queries, k)`, best first; of equals, the earlier.

        A block is searched deeper while what it has not returned might be among the best `k`: rows that were dropped
        took the places, or equal scores. Where vectors are not finite, a number is that of no document, and comes last.
        """
        none, knn = len(self.documents), _faiss().knn
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        numbers = np.full((len(queries), k), none)
        for block, (start, stop) in zip(self._blocks.blocks, pairwise(self._blocks.starts.tolist()), strict=True):
            of_rows = self._numbers[start:stop]
            live = max(1, int((of_rows < none).sum()))
            depth = min(len(of_rows), k + 1 if live == len(of_rows) else 2 * (k + 1) * len(of_rows) // live)
            before, left = (scores.copy(), numbers.copy()), np.arange(len(queries))
            while len(left):
                similar, rows = knn(queries[left], block.vectors, depth, metric=_faiss().METRIC_INNER_PRODUCT)
                here = np.where(rows >= 0, of_rows[rows], none)
                both = np.concatenate([before[0][left], np.where(here < none, similar, -np.inf)], axis=1)
                names = np.concatenate([before[1][left], here], axis=1)
                order = np.lexsort((names, -both), axis=1)[:, :k]
                scores[left] = np.take_along_axis(both, order, axis=1)
                numbers[left] = np.take_along_axis(names, order, axis=1)
                left = left[(similar[:, -1] >= scores[left, -1]) & (depth < len(of_rows))]
                depth = min(4 * depth, len(of_rows))
        return scores, numbers

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the index atomically: order of the documents, blocks of vectors and documents, passport, manifest.

        Files of an index that was opened are hard-linked, not written again; they are copied where the file system has
        no hard links.
        """
        with atomic_folder(Path(folder), marker=ORDER, overwrite=overwrite) as new:
            np.save(new / ORDER, np.asarray(self._rows, dtype="<i8"), allow_pickle=False)
            files = {ORDER: file_sha256(new / ORDER)}
            blocks = []
            free = 1 + max(
                (block.number for block in self._blocks.blocks if isinstance(block, StoredBlock)), default=-1
            )
            for block in self._blocks.blocks:
                if isinstance(block, StoredBlock):
                    number = block.number
                    files |= block.link_or_copy_to(new)
                else:
                    number, free = free, free + 1
                    files |= block.write(new, number)
                blocks.append({"number": number, "rows": block.shape[0]})
            if self.passport is not None:
                write_files(self.passport, new)
            manifest = {
                "format": INDEX.number,
                "encoder_hash": model_hash(self.encoder),
                "tokenizer_sha256": tokenizer_sha256(self.encoder),
                "passport": passport_sha256(self.passport),
                "documents": len(self.documents),
                "dimensions": self.dimensions,
                "query_options": self.query_options,
                "blocks": blocks,
                "files": files,
                "versions": versions(),
            }
            write_json(new / INDEX.file, {**manifest, "sha256": digest_of(manifest)})

    @classmethod
    def load(
        cls, folder: str | Path, encoder: TextEncoder, *, verify: Verify = "fast", any_encoder: bool = False
    ) -> SearchIndex:
        """Open a saved index with the encoder that made it; another encoder is refused.

        The files are mapped into memory, so that an index of any size opens at once. What was opened stays as it is
        when the folder is replaced, as by an update. Files must not be changed in place.

        Args:
            folder: the folder.
            encoder: the encoder that made the index, or one with its `space`.
            verify: `fast` compares the sha256 of manifest and order now, and that of a block when it is first read, by
                a search or by access to a document; `full` compares all now.
            any_encoder: accept another encoder, to compare it with the index; its searches are wrong.

        Raises:
            FileNotFoundError: there is no index.
            ValueError: another encoder made it (by a passport of the index, the fault is named), or a file is missing
                or has changed since it was written.
        """
        if verify not in get_args(Verify):
            raise ValueError(f"verify={verify!r}; choose from {', '.join(get_args(Verify))}")
        _faiss()
        folder = Path(folder)
        recover(folder)
        if not (folder / INDEX.file).is_file():
            raise FileNotFoundError(
                f"{folder} holds no search index (no {INDEX.file}); make one with SearchIndex.build"
            )
        index = read_unchanged(folder, INDEX.file, lambda: cls._opened(folder, encoder, any_encoder))
        for block in index._blocks.blocks if verify == "full" else ():
            assert isinstance(block, StoredBlock)
            block.verify()
        return index

    @classmethod
    def _opened(cls, folder: Path, encoder: TextEncoder, any_encoder: bool) -> SearchIndex:
        """Return the index of a folder, its blocks not verified."""
        manifest = read_json(folder / INDEX.file, keys=_KEYS, kind=INDEX, repair=REPAIR)
        if manifest.pop("sha256") != digest_of(manifest):
            raise ValueError(f"{folder / INDEX.file} has changed since it was written; {REPAIR}")
        with content_of(folder / INDEX.file, repair=REPAIR):
            shapes = _check_manifest(manifest)
        passport = read_files(folder, manifest["passport"], repair=REPAIR)
        if not any_encoder:
            _check_made_by(encoder, manifest, folder, passport)
        sha256 = manifest["files"]
        blocks = [StoredBlock(folder, number, shape, sha256, repair=REPAIR) for number, shape in shapes.items()]
        order = MappedFile(folder / ORDER, sha256[ORDER], repair=REPAIR)
        order.verified()
        rows = order.array("<i8", (manifest["documents"],))
        total = sum(count for count, _ in shapes.values())
        is_position = (rows >= 0) & (rows < total)
        if not is_position.all() or np.bincount(rows, minlength=total).max() > 1:
            raise ValueError(f"{folder / ORDER} is not an order of the rows of {folder}; {REPAIR}")
        return cls(encoder, blocks, rows, query_options=manifest["query_options"], passport=passport)

    def updated(
        self,
        documents: Sequence[Document] | str | Path,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool = False,
    ) -> tuple[SearchIndex, Changes]:
        """Return an index of a newer version of the documents, and what has changed; this index is not modified.

        A document whose title and text are in this index keeps its vector, also under another id; others are embedded.
        Documents that are the same keep their block. The others are put into new blocks, which are held in memory, as
        `documents` are. Those that were dropped stay in their block until more than half of its rows are dropped; then
        its other rows are put into a new block, and so are those of small blocks when there are more than 32.
        """
        documents = _documents(documents, self.encoder)
        earlier = _Earlier.compare(self.documents, documents)
        positions = np.full(len(documents), -1)  # in this index, of documents that keep their row
        is_same = earlier.identical >= 0
        positions[is_same] = self._rows[earlier.identical[is_same]]
        keep = self._blocks_to_keep(positions)
        of_blocks = self._blocks.block_numbers(positions)
        appended = np.flatnonzero(~(is_same & keep[of_blocks]))
        sources = earlier.sources[appended]
        texts = {documents[i].content: documents[i] for i in appended[sources < 0].tolist()}
        numbers = {text: number for number, text in enumerate(texts)}
        which = np.array([numbers.get(documents[i].content, -1) for i in appended.tolist()], dtype=np.int64)
        vectors = np.empty((len(appended), self.dimensions), dtype=np.float32)
        vectors[sources >= 0] = self._blocks.vectors(self._rows[sources[sources >= 0]])
        options = encode_options(self.encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
        for part, encoded in _embedded(self.encoder, [*texts.values()], {**options, **self.query_options}):
            self._check_width(encoded.shape[1])
            here = np.flatnonzero((which >= part.start) & (which < part.stop))
            vectors[here] = encoded[which[here] - part.start]
        blocks: list[Block | StoredBlock] = [self._blocks.blocks[number] for number in np.flatnonzero(keep)]
        sizes = np.where(keep, np.diff(self._blocks.starts), 0)
        moved = np.cumsum(sizes) - sizes - self._blocks.starts[:-1]  # from a position there to that in the new index
        rows = positions + moved[of_blocks]
        rows[appended] = sizes.sum() + np.arange(len(appended))
        blocks += in_blocks(vectors, [documents[i] for i in appended.tolist()])
        changes = replace(earlier.changes, encoded=len(texts))
        index = SearchIndex(self.encoder, blocks, rows, query_options=self.query_options, passport=self.passport)
        return index, changes

    def _check_width(self, width: int) -> None:
        if width != self.dimensions:
            raise ValueError(
                f"the encoder gives {width} dimensions, the index has {self.dimensions}; set truncate_dim to the value "
                "that built the index, or build it again"
            )

    def _blocks_to_keep(self, positions: np.ndarray) -> np.ndarray:
        """Return which blocks an update keeps, given the positions of the documents that are the same."""
        sizes = np.diff(self._blocks.starts)
        live = np.bincount(self._blocks.block_numbers(positions[positions >= 0]), minlength=len(sizes))
        keep: np.ndarray = 2 * live >= sizes
        small = keep & (sizes < _SMALL)
        return keep & ~small if small.sum() > _MOST_SMALL else keep


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


def _embedded(
    encoder: TextEncoder, documents: Sequence[Document], options: Mapping[str, Any]
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield unit vectors of documents, `BLOCK` at a time, and which of the documents they are of."""
    with progress(len(documents), "encode", "text", show=bool(options["show_progress_bar"])) as bar:
        for start in range(0, len(documents), BLOCK):
            part = slice(start, min(start + BLOCK, len(documents)))
            texts = [document.content for document in documents[part]]
            with bar.shared():
                vectors = encoder.encode_document(texts, **options)
            yield part, unit_vectors(vectors, what="documents", texts=texts)
            bar.reach(part.stop)


def _check_manifest(values: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Return the shape of each block by its number; raise if the values of a manifest do not fit together."""
    entries = [(block["number"], block["rows"]) for block in values["blocks"]]
    counts = [values["documents"], values["dimensions"], *(rows for _, rows in entries)]
    options = values["query_options"]
    if any(type(number) is not int for number in [*counts, *(number for number, _ in entries), *options.values()]):
        raise TypeError("a number is not an integer")
    shapes = {number: (rows, values["dimensions"]) for number, rows in entries if 0 <= number < 10**9}
    names = {ORDER, *(name for number in shapes for name in block_files(number))}
    total = sum(rows for _, rows in entries)
    if min(counts) < 1 or not values["documents"] <= total <= 2 * values["documents"]:  # half may be dropped
        raise ValueError("its numbers of documents and rows do not fit together")
    if len(shapes) != len(entries) or values["files"].keys() != names:
        raise ValueError("its files are not those of its blocks")
    if not isinstance(values["encoder_hash"], str) or not isinstance(values["passport"], str | None):
        raise TypeError("encoder_hash or passport is not a text")
    return shapes


def _check_made_by(
    encoder: TextEncoder, manifest: Mapping[str, Any], folder: Path, passport: PassportFiles | None
) -> None:
    """Raise unless an encoder, or the one whose space it has, made the index of a folder."""
    space = space_of(encoder)
    current = space or model_hash(encoder)
    if manifest["encoder_hash"] != current:
        raise ValueError(
            f"{folder} was built with the encoder {manifest['encoder_hash'][:12]}, this is {current[:12]} "
            f"(hashes){fault_between(passport, encoder)}; their vectors cannot be compared: give the encoder that "
            "built the index, or build it again"
        )
    if space is None and manifest["tokenizer_sha256"] != tokenizer_sha256(encoder):
        raise ValueError(
            f"{folder} was built with the same weights and another tokenizer{fault_between(passport, encoder)}; give "
            "the encoder that built the index, or build it again"
        )


@dataclass(frozen=True)
class _Earlier:
    """Documents of a newer version in an older one.

    Attributes:
        identical: number of the same document (id, title and text) in the older version, `(documents,)`; -1: none.
        sources: number of a document with the same content, `(documents,)`; -1: none.
        changes: counts.
    """

    identical: np.ndarray
    sources: np.ndarray
    changes: Changes

    @classmethod
    def compare(cls, older: Sequence[Document], newer: Sequence[Document]) -> _Earlier:
        """Compare two versions; texts of the older one are read once, and not held."""
        digests = [_digest(document.content) for document in newer]
        indices, wanted = {document.id: index for index, document in enumerate(newer)}, set(digests)
        same_id, identical = np.full((2, len(newer)), -1)
        has_same_text = np.zeros(len(newer), dtype=bool)
        by_text: dict[bytes, int] = {}
        for number, document in enumerate(older):
            digest, index = _digest(document.content), indices.get(document.id)
            if digest in wanted:
                by_text.setdefault(digest, number)
            if index is not None:
                same_id[index], has_same_text[index] = number, digest == digests[index]
                identical[index] = number if document == newer[index] else -1
        sources = np.where(has_same_text, same_id, [by_text.get(digest, -1) for digest in digests])
        same_count, shared = int(has_same_text.sum()), int((same_id >= 0).sum())
        changes = Changes(
            kept=same_count, changed=shared - same_count, new=len(newer) - shared, dropped=len(older) - shared
        )
        return cls(identical, sources, changes)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
