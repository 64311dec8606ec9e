"""Vectors and documents in blocks of rows: in memory, or in files that are mapped and verified at their first read.

A block on disk is two files with the same rows: `vectors-00000.npy` (float32, `(rows, dimensions)`) and
`documents-00000.arrow` (one batch of an Arrow IPC file, with columns `id`, `title` and `text`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from embrew.data.beir import Document
from embrew.files.checksums import file_sha256
from embrew.files.mapped import MappedFile
from embrew.files.reading import is_content_error

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 65_536  # of a block; the last one of a new index, and those of an update, may have fewer
CHUNK = 8192  # documents that are read at once


def block_files(number: int) -> tuple[str, str]:
    """Return the names of a block's files: of its vectors, and of its documents."""
    return f"vectors-{number:05d}.npy", f"documents-{number:05d}.arrow"


class Block:
    """Rows in memory.

    Attributes:
        vectors: `(rows, dimensions)`, float32, C-contiguous.
    """

    def __init__(self, vectors: np.ndarray, documents: Sequence[Document]) -> None:
        self.vectors, self._documents = vectors, documents

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of dimensions."""
        return len(self.vectors), self.vectors.shape[1]

    def documents_at(self, rows: np.ndarray) -> list[Document]:
        """Return the documents of some rows, in their order."""
        return [self._documents[row] for row in rows.tolist()]

    def write(self, folder: Path, number: int) -> dict[str, str]:
        """Write the block's files; return the sha256 of each by its name."""
        import pyarrow as pa

        vectors, documents = (folder / name for name in block_files(number))
        np.save(vectors, self.vectors, allow_pickle=False)
        schema = _schema()
        columns = [
            pa.array([getattr(document, name) for document in self._documents], pa.large_string())
            for name in schema.names
        ]
        with pa.OSFile(str(documents), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        return {path.name: file_sha256(path) for path in (vectors, documents)}


class StoredBlock:
    """Rows of files, which are mapped into memory when it is made, and verified at their first read.

    Args:
        folder: where the files are.
        number: the number in their names.
        shape: number of rows and of dimensions.
        sha256: of each file, by its name.
        repair: what the user should do if one is missing or damaged.

    Raises:
        ValueError: a file is missing, or has other vectors than `shape` says; later, that one is damaged.
    """

    def __init__(
        self, folder: Path, number: int, shape: tuple[int, int], sha256: Mapping[str, str], *, repair: str
    ) -> None:
        self.number, self.shape = number, shape
        self._files = [MappedFile(folder / name, sha256[name], repair=repair) for name in block_files(number)]
        self._vectors = self._files[0].array("<f4", shape)

    @property
    def vectors(self) -> np.ndarray:
        """Vectors, `(rows, dimensions)`, float32, not copied."""
        self._files[0].verified()
        return self._vectors

    def documents_at(self, rows: np.ndarray) -> list[Document]:
        """Return the documents of some rows, in their order."""
        import pyarrow as pa

        columns = [column.to_pylist() for column in self._batch.take(pa.array(rows)).columns]
        return [Document(id=name, title=title, text=text) for name, title, text in zip(*columns, strict=True)]

    def verify(self) -> None:
        """Verify both files, whether or not they were read.

        Raises:
            ValueError: one is damaged.
        """
        self._files[0].verified()
        self._batch  # noqa: B018

    def link_or_copy_to(self, folder: Path) -> dict[str, str]:
        """Hard-link the files into a folder, or copy them; return the sha256 of each by its name."""
        for file in self._files:
            file.link_or_copy_to(folder / file.path.name)
        return {file.path.name: file.sha256 for file in self._files}

    @cached_property
    def _batch(self) -> pa.RecordBatch:
        import pyarrow as pa

        file = self._files[1]
        content = pa.py_buffer(file.verified())
        try:
            reader = pa.ipc.open_file(content)
            if reader.schema != _schema() or reader.num_record_batches != 1:
                raise file.changed()
            batch = reader.get_batch(0)
            batch.validate(full=True)  # of a file by someone else, whose own sha256 is right
        except Exception as error:
            if not is_content_error(error, also=(pa.ArrowException, OSError)):
                raise
            raise file.changed() from error
        if len(batch) != self.shape[0] or any(column.null_count for column in batch.columns):
            raise file.changed()
        file.release()
        return batch


class Blocks:
    """Blocks one after the other; the position of a row counts from the first row of the first block.

    Attributes:
        blocks: the blocks.
        starts: position of each block's first row, and the number of all rows, `(blocks + 1,)`.
    """

    def __init__(self, blocks: Sequence[Block | StoredBlock]) -> None:
        self.blocks = list(blocks)
        self.starts: np.ndarray = np.cumsum([0, *(block.shape[0] for block in blocks)])

    def block_numbers(self, positions: np.ndarray) -> np.ndarray:
        """Return the number of the block that holds each position."""
        numbers: np.ndarray = np.searchsorted(self.starts, positions, side="right") - 1
        return numbers

    def documents(self, positions: np.ndarray) -> list[Document]:
        """Return the documents at some positions, in their order."""
        documents: list[Document] = [None] * len(positions)  # type: ignore[list-item]
        for block, indices, rows in self._parts(positions):
            for index, document in zip(indices.tolist(), block.documents_at(rows), strict=True):
                documents[index] = document
        return documents

    def vectors(self, positions: np.ndarray) -> np.ndarray:
        """Return a copy of the vectors at some positions, `(positions, dimensions)`."""
        vectors = np.empty((len(positions), self.blocks[0].shape[1]), dtype=np.float32)
        for block, indices, rows in self._parts(positions):
            vectors[indices] = block.vectors[rows]
        return vectors

    def _parts(self, positions: np.ndarray) -> Iterator[tuple[Block | StoredBlock, np.ndarray, np.ndarray]]:
        """Yield blocks, the indices of the positions in each, and the rows of these."""
        numbers = self.block_numbers(positions)
        for number in np.unique(numbers).tolist():
            indices = np.flatnonzero(numbers == number)
            yield self.blocks[number], indices, positions[indices] - self.starts[number]


class Documents(Sequence[Document]):
    """Documents of blocks in their order, each read when it is asked for; equal to a list of the same documents.

    Args:
        blocks: where they are.
        positions: `(documents,)`, the position of each in the blocks.
    """

    def __init__(self, blocks: Blocks, positions: np.ndarray) -> None:
        self._blocks, self._positions = blocks, positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...
    def __getitem__(self, index: int | slice) -> Document | list[Document]:
        if isinstance(index, slice):
            return self._blocks.documents(self._positions[index])
        (document,) = self._blocks.documents(self._positions[index, None])
        return document

    def __iter__(self) -> Iterator[Document]:
        for start in range(0, len(self), CHUNK):
            yield from self[start : start + CHUNK]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} documents>"


def in_blocks(vectors: np.ndarray, documents: Sequence[Document]) -> list[Block]:
    """Return blocks of vectors, which are not copied, and of their documents."""
    parts = (slice(start, start + ROWS) for start in range(0, len(documents), ROWS))
    return [Block(vectors[part], documents[part]) for part in parts]


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.large_string(), nullable=False) for name in ("id", "title", "text")])
