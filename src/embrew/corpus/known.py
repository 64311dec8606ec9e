"""Find existing vectors by their texts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from embrew.corpus.corpus import Shard
from embrew.corpus.hashes import read_hashes, text_hashes
from embrew.corpus.lookup import Lookup, keys_of
from embrew.corpus.manifest import Entry
from embrew.corpus.shards import read_shard

OPEN = 4  # number of shards whose vectors are kept in memory while rows are copied


class Found(NamedTuple):
    """Existing vectors for the rows of a shard.

    Attributes:
        places: index of the vector of each row's text, -1 if there is none.
        same: rows whose id is known, with this text.
        changed: rows whose id is known, with another text.
    """

    places: np.ndarray
    same: np.ndarray
    changed: np.ndarray


class Known:
    """Index of the rows of finished shards; about 50 bytes of memory per row.

    Attributes:
        whole: shards, by the hash of all their ids and texts.
        unhashed: number of shards without hashes of their texts; their rows cannot be found individually.
    """

    def __init__(self) -> None:
        self.whole: dict[str, tuple[Path, Entry]] = {}
        self.unhashed = 0
        self._shards: list[Path] = []
        self._starts: list[int] = []
        self._hashes: list[np.ndarray] = []
        self._rows = 0
        self._by_text, self._by_id = Lookup(), Lookup()
        self._read = lru_cache(maxsize=OPEN)(lambda path: read_shard(path)[1])

    @property
    def ids(self) -> int:
        """Number of ids in the older version of the corpus."""
        return len(self._by_id)

    def add(self, folder: Path, entry: Entry, *, older: bool) -> None:
        """Add the rows of a finished shard.

        Args:
            folder: the folder with the shard.
            entry: its entry in the manifest.
            older: it belongs to the older version of the corpus, so its ids are compared; otherwise only its texts are.
        """
        places = np.arange(self._rows, self._rows + entry.rows)
        hashes = read_hashes(folder, entry.file, entry.rows, entry.input_sha256)
        if older:
            self.whole[entry.input_sha256] = folder, entry
            names = pq.read_table(folder / entry.file, columns=["id"]).column("id").to_pylist()
            self._by_id.add(keys_of(names, len(names)), places)
        if hashes is None:
            self.unhashed += 1
        else:
            self._by_text.add(hashes[:, 0], places)
        self._shards.append(folder / entry.file)
        self._starts.append(self._rows)
        self._hashes.append(np.empty((0, 2), dtype=np.uint64) if hashes is None else hashes)
        self._rows += entry.rows

    def find(self, shard: Shard) -> Found:
        """Look up the rows of a shard, first by id and text, then by text alone."""
        hashes = text_hashes(row.text for row in shard.rows)
        by_id = self._by_id.find(keys_of((row.id for row in shard.rows), len(shard.rows)))
        if shard.sha256 in self.whole:  # also if its texts have no hashes
            return Found(by_id, np.ones(len(by_id), dtype=bool), np.zeros(len(by_id), dtype=bool))
        same = self._have(by_id, hashes)
        by_text = self._by_text.find(hashes[:, 0])
        places = np.where(same, by_id, np.where(self._have(by_text, hashes), by_text, -1))
        return Found(places, same, (by_id >= 0) & ~same)

    def codes(self, places: np.ndarray) -> np.ndarray:
        """Return a copy of the stored vectors at `places`."""
        of = np.searchsorted(self._starts, places, side="right") - 1
        codes: np.ndarray | None = None
        for number in np.unique(of):
            read = self._read(self._shards[number])
            codes = np.empty((len(places), read.shape[1]), dtype=read.dtype) if codes is None else codes
            codes[of == number] = read[places[of == number] - self._starts[number]]
        assert codes is not None, "there are places"
        return codes

    def _have(self, places: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        """Return whether the texts at `places` have these hashes; False for -1 and for unknown hashes."""
        of = np.searchsorted(self._starts, places, side="right") - 1
        equal = np.zeros(len(places), dtype=bool)
        for number in np.unique(of[places >= 0]):
            rows = np.flatnonzero((of == number) & (places >= 0))
            if len(self._hashes[number]):
                there = self._hashes[number][places[rows] - self._starts[number]]
                equal[rows] = (there == hashes[rows]).all(axis=1)
        return equal


class Texts:
    """Texts so far, as 128-bit hashes, to encode each of them once."""

    def __init__(self) -> None:
        self._known = Lookup()

    def new(self, texts: Iterable[str]) -> list[bool]:
        """Add texts; return which of them were not added before."""
        hashes = text_hashes(texts)
        keys, checks = hashes[:, 0], (hashes[:, 1] >> np.uint64(1)).view(np.int64)
        new = self._known.find(keys) != checks
        _, first = np.unique(hashes, axis=0, return_index=True)
        distinct = np.zeros(len(keys), dtype=bool)
        distinct[first] = True
        self._known.add(keys[new & distinct], checks[new & distinct])
        return [bool(value) for value in new & distinct]
