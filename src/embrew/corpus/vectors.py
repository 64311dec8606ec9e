"""Read a folder of encoded vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embrew.corpus.layout import MANIFEST, restore
from embrew.corpus.manifest import Entry, Manifest, read_manifest
from embrew.corpus.precision import Ranges, dequantize
from embrew.corpus.shards import check_whole, read_blocks, read_shard
from embrew.stores.paths import Place, local_copy, place_of


@dataclass(frozen=True)
class Vectors:
    """Ids and vectors on disk, in the order of the corpus.

    Iteration yields `(ids, codes)` per shard: a list of strings and an array `(rows, dimensions)` float32 or int8, or
    `(rows, ceil(dimensions / 8))` uint8 for binary.

    Examples:
        >>> for ids, codes in read_vectors("vectors"):  # doctest: +SKIP
        ...     index.add(vectors.dequantize(codes))
    """

    folder: Place
    manifest: Manifest

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def dimensions(self) -> int:
        """Dimensions of a vector before it was quantised."""
        return self.manifest.dimensions or 0

    @property
    def ranges(self) -> Ranges | None:
        """Ranges of int8 codes; None for other precisions."""
        return self.manifest.ranges

    def __iter__(self) -> Iterator[tuple[list[str], np.ndarray]]:
        return map(read_shard, self._files())

    def _files(self) -> Iterator[Path]:
        """Yield the files of the shards; each is compared with the manifest first."""
        for number in sorted(self.manifest.shards):
            with self._verified(self.manifest.shards[number]) as file:
                yield file

    @contextmanager
    def _verified(self, entry: Entry) -> Iterator[Path]:
        with ExitStack() as stack:
            try:
                if not (self.folder / entry.file).exists():
                    missing = f"{self.folder / entry.file} is missing; give the same embrew encode again to write it"
                    raise FileNotFoundError(missing)
                file = stack.enter_context(local_copy(self.folder / entry.file))
                check_whole(file, self.folder, self.manifest, entry)
            except (ValueError, FileNotFoundError) as error:
                if read_manifest(self.folder) != self.manifest:
                    raise ValueError(f"{self.folder} was replaced while it was read; open it again") from error
                raise
            yield file

    def dequantize(self, codes: np.ndarray) -> np.ndarray:
        """Return float32 `(rows, dimensions)` vectors of codes: int8 within half a step, binary as -1 and 1."""
        return dequantize(codes, dimensions=self.dimensions, ranges=self.ranges)

    def load(self) -> tuple[list[str], np.ndarray]:
        """Return all ids and all vectors, float32 `(rows, dimensions)`."""
        ids: list[str] = []
        vectors = np.empty((len(self), self.dimensions), dtype=np.float32)
        for file in self._files():
            for some, codes in read_blocks(file):
                vectors[len(ids) : len(ids) + len(some)] = self.dequantize(codes)
                ids += some
        return ids, vectors


def holds_vectors(folder: str | Place) -> bool:
    """Return whether `encode_corpus` wrote a folder; a path, or a URL."""
    folder = place_of(folder)
    return (folder / MANIFEST).is_file()


def read_vectors(folder: str | Place, *, partial: bool = False) -> Vectors:
    """Open a folder that `encode_corpus` wrote; each shard's sha256 is verified when it is read.

    Args:
        folder: the output folder; a path, or a URL.
        partial: accept a folder whose corpus is not completely encoded.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: the corpus is not completely encoded.
    """
    folder = place_of(folder)
    restore(folder)
    manifest = read_manifest(folder)
    if not manifest.complete and not partial:
        raise ValueError(
            f"{folder} is not complete ({manifest.rows:,} rows so far); give the same embrew encode, or partial=True"
        )
    return Vectors(folder, manifest)
