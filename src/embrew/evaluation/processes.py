"""Processes of one launch (`torchrun`) that evaluate together, and a corpus that they rank in chunks.

Counters in the launcher's store share out the work. What is ranked of a corpus is kept on disk, so that a stopped run
resumes.
"""

from __future__ import annotations

import logging
import os
import time
import zipfile
import zlib
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from embrew.files.reading import content_of
from embrew.files.writing import atomic_path

if TYPE_CHECKING:
    from torch.distributed import Store

logger = logging.getLogger(__name__)
POLL = 0.2  # seconds


class Processes:
    """The processes of one launch; without a store, this process alone.

    Attributes:
        count: number of processes.
        rank: number of this process, from 0.
    """

    def __init__(self, store: Store | None = None, *, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        if store is None:
            from torch.distributed import HashStore

            store = HashStore()
        self._store = store
        self._evaluations = self._meetings = 0

    @classmethod
    def of_launch(cls) -> Processes:
        """Return the processes that `torchrun` or `accelerate launch` started; each uses the GPU of its local rank."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        import torch
        from torch.distributed import PrefixStore, rendezvous

        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        store, rank, count = next(rendezvous("env://"))
        return cls(PrefixStore("embrew/evaluate", store), rank=rank, count=count)

    def begin(self) -> None:
        """Begin an evaluation, which has counters of its own; every process begins the same ones in the same order."""
        self._evaluations += 1
        self._meetings = 0

    def add(self, name: str) -> int:
        """Add 1 to a counter of all processes; return what it was."""
        return int(self._store.add(f"{self._evaluations}/{name}", 1)) - 1

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self._meetings += 1
        name = f"meeting {self._meetings}"
        complete = f"{self._evaluations}/{name} is complete"
        if self.add(name) == self.count - 1:
            self._store.set(complete, "")
        while not self._store.check([complete]):
            time.sleep(POLL)


class FinishedByOthers(Exception):
    """Another process finishes the task."""


class RankedChunks(NamedTuple):
    """The best documents of some chunks for each query, best first.

    Attributes:
        chunks: numbers of the chunks, `(chunks,)`.
        scores: `(queries, documents)`.
        documents: numbers of the documents, `(queries, documents)`.
    """

    chunks: np.ndarray
    scores: np.ndarray
    documents: np.ndarray

    def merged(self, other: RankedChunks, k: int) -> RankedChunks:
        """Return the best `k` of both; of equal scores, the document with the smaller number."""
        chunks, scores, documents = (np.concatenate(both, axis=-1) for both in zip(self, other, strict=True))
        order = np.lexsort((documents, -scores), axis=1)[:, :k]
        return RankedChunks(
            chunks, np.take_along_axis(scores, order, axis=1), np.take_along_axis(documents, order, axis=1)
        )


class CorpusChunks:
    """The chunks of one corpus, of which each process takes the next one when it is free.

    A process keeps the best documents of its chunks in one file. A chunk is encoded by one call, whichever process does
    it, so its scores are the same bits, and so is the best of all chunks.

    Args:
        processes: who shares the corpus.
        name: the task, the same in all processes.
        folder: where the best documents are kept; None: nowhere, for one process. All processes read it before one of
            them takes a chunk.
    """

    def __init__(self, processes: Processes | None = None, name: str = "", folder: Path | None = None) -> None:
        self._processes, self._name, self._folder = processes or Processes(), name, folder
        self._ranked: RankedChunks | None = None
        self._before: set[int] = set() if folder is None else _ranked_before(folder)

    def remaining(self, total: int) -> Iterator[int]:
        """Yield the numbers of the chunks that this process is to rank."""
        if self._before:
            logger.info("%d of %d parts of the corpus were ranked before", len(self._before), total)
        left = [number for number in range(total) if number not in self._before]
        while (index := self._processes.add(f"{self._name} chunk")) < len(left):
            yield left[index]

    def add(self, number: int, scores: np.ndarray, documents: np.ndarray, k: int) -> None:
        """Keep the best `k` documents of a chunk and of those that this process has ranked before."""
        chunk = RankedChunks(np.array([number]), scores, documents)
        self._ranked = chunk if self._ranked is None else self._ranked.merged(chunk, k)
        if self._folder is not None:
            path = self._folder / f"{self._ranked.chunks[0]}.npz"
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                np.savez(file, **self._ranked._asdict())

    def best(self, total: int, k: int) -> np.ndarray:
        """Return the numbers of the best `k` documents of all chunks, to the process that is the last to ask.

        Raises:
            FinishedByOthers: another process has not asked yet.
            ValueError: another evaluation has written to the folder meanwhile.
        """
        if self._processes.add(f"{self._name} ranked") < self._processes.count - 1:
            raise FinishedByOthers
        if self._folder is None:
            assert self._ranked is not None, "one process ranks all chunks"
            return self._ranked.documents
        parts = [_read(path) for path in sorted(self._folder.glob("*.npz"))]
        if sorted(number for part in parts for number in part.chunks) != list(range(total)):
            raise ValueError(
                f"{self._folder} does not hold each part of the corpus once: another evaluation writes there too; give "
                "each its own output folder"
            )
        return reduce(lambda ranked, other: ranked.merged(other, k), parts).documents


def _ranked_before(folder: Path) -> set[int]:
    """Return the numbers of the chunks of earlier runs; remove files that cannot be used."""
    chunks: set[int] = set()
    for path in sorted(folder.glob("*.npz")):
        try:
            part = _read(path)
            if not chunks.isdisjoint(part.chunks):
                raise ValueError("another file has a part of it")
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be used (%s); its part of the corpus is ranked again", path, error)
            path.unlink(missing_ok=True)
        else:
            chunks.update(part.chunks.tolist())
    return chunks


def _read(path: Path) -> RankedChunks:
    """Return a file's content, which zip compares with its checksum."""
    also = (zipfile.BadZipFile, EOFError, RuntimeError, zlib.error)  # RuntimeError: unknown compression, encryption
    repair = "remove it, and the same command ranks its part of the corpus again"
    with content_of(path, repair=repair, also=also), np.load(path, allow_pickle=False) as file:
        return RankedChunks(*(file[name] for name in RankedChunks._fields))
