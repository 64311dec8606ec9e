"""A corpus that is ranked in chunks: shared out over processes, and kept on disk, so that a stopped run resumes.

Each process keeps the best documents of its chunks in one file. A chunk is encoded by one call, whoever does it, so its
scores are the same bits, and so is the best of all chunks.
"""

from __future__ import annotations

import logging
import shutil
import zipfile
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np

from embrew.evaluation.processes import Processes
from embrew.files.writing import atomic_path

logger = logging.getLogger(__name__)

BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


class FinishedByOthers(Exception):
    """Other processes do the rest of the task."""


class Best(NamedTuple):
    """The best documents of each query, best first: scores and numbers, `(queries, documents)`."""

    scores: np.ndarray
    numbers: np.ndarray

    def and_of(self, other: Best, k: int) -> Best:
        """Return the best `k` of both; of equal scores, the document with the smaller number."""
        scores = np.concatenate([self.scores, other.scores], axis=1)
        numbers = np.concatenate([self.numbers, other.numbers], axis=1)
        order = np.lexsort((numbers, -scores), axis=1)[:, :k]
        return Best(np.take_along_axis(scores, order, axis=1), np.take_along_axis(numbers, order, axis=1))


class CorpusShare:
    """The chunks of one corpus that this process ranks.

    Args:
        processes: who shares the corpus.
        name: the task, the same in all processes.
        folder: where the best documents are kept; None: nowhere, for one process.
        afresh: remove what an earlier run kept.
    """

    def __init__(
        self, processes: Processes | None = None, name: str = "", folder: Path | None = None, *, afresh: bool = False
    ) -> None:
        self._processes, self._name, self._folder = processes or Processes(), name, folder
        self._afresh = afresh
        self._done: list[int] = []
        self._left = self._total = 0
        self._is_last = False

    @property
    def is_taken(self) -> bool:
        """Whether all chunks are taken, by this process or others."""
        return self._processes.is_said(f"{self._name}/taken")

    def chunks(self, total: int) -> Iterator[int]:
        """Yield the numbers of the chunks that this process ranks.

        Raises:
            FinishedByOthers: there are none.
        """
        self._total = total
        kept = set(self._processes.decided(f"{self._name}/kept", self._kept))
        left = [number for number in range(total) if number not in kept]
        self._left = len(left)
        if kept:
            logger.info("%d of %d parts of the corpus were ranked before", len(kept), total)
        if not left:
            self._is_last = self._processes.add(f"{self._name}/no chunk") == 0
        while (at := self._processes.add(f"{self._name}/chunk")) < len(left):
            if at == len(left) - 1:
                self._processes.say(f"{self._name}/taken")
            yield left[at]
        if not self._done and not self._is_last:
            raise FinishedByOthers

    def keep(self, number: int, best: Best) -> None:
        """Keep the best documents of all chunks that this process has ranked; `number` is the newest of them."""
        self._done.append(number)
        if self._folder is not None and self._total > 1:
            with atomic_path(self._folder / f"{self._done[0]}.npz") as temporary, temporary.open("wb") as file:
                np.savez(file, chunks=np.array(self._done), total=np.array(self._total), **best._asdict())
        self._is_last = self._processes.add(f"{self._name}/ranked") + 1 == self._left

    def all_of(self, best: Best | None, k: int) -> Best:
        """Return the best documents of all chunks, to the process that ranked the last one.

        Args:
            best: those of the chunks that this process ranked; None: it ranked none.
            k: number of documents per query.

        Raises:
            FinishedByOthers: another process still ranks one.
            ValueError: another evaluation has written to the folder meanwhile.
        """
        if not self._is_last:
            raise FinishedByOthers
        if self._folder is None or self._total == 1:
            assert best is not None, "all chunks are its own"
            return best
        found = [_read(path) for path in sorted(self._folder.glob("*.npz"))]
        if sorted(number for part in found for number in part.chunks) != list(range(self._total)):
            raise ValueError(
                f"{self._folder} does not hold each part of the corpus once: another evaluation writes there too; give "
                "each its own output folder"
            )
        return reduce(lambda one, other: one.and_of(other, k), (part.best for part in found))

    def remove(self) -> None:
        """Remove what was kept; the task is finished."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _kept(self) -> list[int]:
        """Return the chunks of earlier runs; remove files that cannot be used."""
        if self._folder is None:
            return []
        if self._afresh:
            self.remove()
        kept: set[int] = set()
        for path in sorted(self._folder.glob("*.npz")):
            try:
                part = _read(path)
                if part.total != self._total or kept.intersection(part.chunks):
                    raise ValueError("made of another corpus")
            except BROKEN as error:
                logger.warning("%s cannot be used (%s); its part of the corpus is ranked again", path, error)
                path.unlink()
            else:
                kept.update(part.chunks)
        return sorted(kept)


class _Part(NamedTuple):
    """What one file holds."""

    chunks: list[int]
    total: int
    best: Best


def _read(path: Path) -> _Part:
    with np.load(path, allow_pickle=False) as file:
        return _Part(file["chunks"].tolist(), int(file["total"]), Best(file["scores"], file["numbers"]))
