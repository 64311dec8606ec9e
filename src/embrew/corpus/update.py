"""Encode a newer version of a corpus: copy the vectors of texts that a folder holds, encode new texts only.

New texts of the folder `vectors` are encoded into shards in `.vectors.update/fresh`, with the same parent folder. The
next version is assembled from these and the old shards in a temporary folder, and exchanged with `vectors` in one step:
readers see the old version or the new one. After a kill, the texts in `fresh` are not encoded again, also if the corpus
has changed once more.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from embrew.corpus.encoding import Summary, check_unchanged, claimed_folder, encode_shards, summary_of
from embrew.corpus.job import ABOUT, MANIFEST, Job
from embrew.corpus.rows import Seen, Shard, Text, in_shards, job_rejects, shards, text_hashes, unlisted_rejects
from embrew.corpus.shards import (
    REPAIR,
    Entry,
    Manifest,
    encode_options_of,
    is_whole,
    new_manifest,
    read_hashes,
    read_manifest,
    read_shard,
    require_same,
    shard_name,
    write_codes,
    write_hashes,
)
from embrew.files.writing import atomic_folder, claimed, link_or_copy, recover
from embrew.passport.of_index import read_files, write_files
from embrew.search import Changes
from embrew.text_encoder import EncodeOptions, TextEncoder

logger = logging.getLogger(__name__)

OF_THE_CORPUS = ("input", "id_column", "text_column")
"""Settings that may differ between two versions, since vectors are found by their texts."""
OPEN = 4  # number of shards whose vectors are held in memory while rows are copied


def update_corpus(
    encoder: TextEncoder, input: str | Path, output: str | Path, *, show_progress_bar: bool = False, **settings: Any
) -> Summary:
    """Update a folder of vectors to a newer version of its corpus; called again, it resumes.

    A row whose text is in the folder keeps its vector, also under another id or in another position. Other rows are
    encoded; rows that the corpus no longer has are left out. Ids and order are those of the newer version; int8
    ranges stay those of the folder. The folder is replaced in one step.

    Args:
        encoder: the encoder that made the folder.
        input: the newer version of the corpus.
        output: a folder that `encode_corpus` wrote.
        show_progress_bar: show a progress bar for the new texts.
        **settings: the fields of `Job`, as they were for the folder; `id_column` and `text_column` may differ.

    Returns:
        Content of the folder; its `changes` count rows that were kept, changed, new and dropped.

    Raises:
        FileNotFoundError: there is no such folder.
        FileExistsError: its vectors were made with other settings; names what differs.
        ValueError: a row cannot be encoded, a vector is zero or not finite, a finished shard has changed.

    Examples:
        >>> update_corpus(encoder, "corpus-2.jsonl", "vectors").changes  # doctest: +SKIP
        Changes(kept=990, changed=4, new=10, dropped=6, encoded=14)
    """
    began = time.monotonic()
    job = Job(input=input, output=output, **settings)
    folder = job.local_folder.resolve()
    recover(folder)
    read_manifest(folder)  # refused before anything is written
    if folder.is_mount():
        raise ValueError(f"{folder} is a mount point and cannot be replaced in one step; encode into a folder in it")
    options = encode_options_of(encoder, job, show_progress_bar=show_progress_bar)
    manifest = new_manifest(encoder, job)
    scratch = folder.parent / f".{folder.name}.update"
    with claimed_folder(folder), claimed(scratch, "updating with"):
        old = read_manifest(folder)
        require_same(old, manifest, folder, apart_from=OF_THE_CORPUS)
        manifest.dimensions, manifest.ranges, manifest.passport = old.dimensions, old.ranges, old.passport
        passport = read_files(folder / ABOUT, old.passport, repair=REPAIR)
        older = _Rows([(folder, entry) for _, entry in sorted(old.shards.items()) if is_whole(folder, entry)])
        try:
            encoded = _encode_unknown(encoder, replace(job, output=scratch / "fresh"), manifest, older, options)
        finally:
            if not any(scratch.glob("fresh/part-*")):
                shutil.rmtree(scratch, ignore_errors=True)
        with atomic_folder(folder, marker=MANIFEST, overwrite=True) as new:
            if passport is not None:
                write_files(passport, new / ABOUT)
            changes, unchanged = _assemble(replace(job, output=new), manifest, older)
        shutil.rmtree(scratch, ignore_errors=True)
    return summary_of(manifest, kept=unchanged, began=began, changes=replace(changes, encoded=encoded))


class _Lookup:
    """Positions by 64-bit key, 16 bytes per key; of equal keys, the first one counts."""

    def __init__(self, keys: np.ndarray) -> None:
        self.count = len(keys)
        keys = np.append(keys, keys.dtype.type(0))  # never empty; not a position
        order = np.argsort(keys, kind="stable")
        self._keys, self._positions = keys[order], np.where(order < self.count, order, -1)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the position of every key; -1 for other keys."""
        indices = np.minimum(np.searchsorted(self._keys, keys), self.count)
        return np.where(self._keys[indices] == keys, self._positions[indices], -1)


class _Rows:
    """The rows of finished shards, found by id and text; about 50 bytes of memory per row.

    Attributes:
        unchanged: shards of the older version, by the hash of all their ids and texts.
        ids: positions of the ids of the older version.
    """

    def __init__(self, older: Sequence[tuple[Path, Entry]]) -> None:
        self.unchanged = {entry.input_sha256: (folder / entry.file, entry) for folder, entry in older}
        names = (pq.read_table(folder / entry.file, columns=["id"])["id"].to_pylist() for folder, entry in older)
        self.ids = _Lookup(_keys(chain.from_iterable(names)))
        self._files: list[Path] = []
        self._starts = [0]
        self._hashes = np.zeros((1, 2), dtype=np.uint64)  # the last one is that of no row
        self._read = lru_cache(maxsize=OPEN)(lambda path: read_shard(path)[1])
        self.add(older)

    def add(self, shards: Sequence[tuple[Path, Entry]]) -> None:
        """Add the rows of finished shards; where their hashes are missing, no text is found in them."""
        blocks, missing = [self._hashes[:-1]], 0
        for folder, entry in shards:
            hashes = read_hashes(folder, entry)
            missing += hashes is None
            blocks.append(np.zeros((entry.rows, 2), dtype=np.uint64) if hashes is None else hashes)
            self._files.append(folder / entry.file)
            self._starts.append(self._starts[-1] + entry.rows)
        self._hashes = np.concatenate([*blocks, self._hashes[-1:]])
        self._texts = _Lookup(self._hashes[:-1, 0])
        if missing:
            logger.warning(
                "%d of %d shards have no hashes of their texts (the files are missing or damaged); their rows are kept "
                "only where a whole shard is unchanged. If you have the corpus that they were made of, stop, give "
                "embrew encode with it first, which adds the hashes, and then this",
                missing,
                len(shards),
            )

    def find(self, shard: Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Look up the rows of a shard, first by id and text, then by text alone.

        Returns:
            Positions of the vectors of the texts, -1 where there is none; which ids have this text; which have another.
        """
        hashes = text_hashes(row.text for row in shard.rows)
        by_id = self.ids.find(_keys(row.id for row in shard.rows))
        by_text = self._texts.find(hashes[:, 0])
        same = (by_id >= 0) & (self._hashes[by_id] == hashes).all(axis=1)
        positions = np.where((self._hashes[by_text] == hashes).all(axis=1), by_text, -1)
        return np.where(same, by_id, positions), same, (by_id >= 0) & ~same

    def codes(self, positions: np.ndarray) -> np.ndarray:
        """Return a copy of the stored vectors at `positions`."""
        shards = np.searchsorted(self._starts, positions, side="right") - 1
        order = np.argsort(shards, kind="stable")
        blocks = []
        for number in np.unique(shards):
            blocks.append(self._read(self._files[number])[positions[shards == number] - self._starts[number]])
        codes = np.concatenate(blocks)
        result = np.empty_like(codes)
        result[order] = codes
        return result


def _keys(names: Iterable[str]) -> np.ndarray:
    """Return 64-bit keys of ids, the same only within this process."""
    return np.fromiter(map(hash, names), dtype=np.int64)


def _encode_unknown(encoder: TextEncoder, job: Job, manifest: Manifest, rows: _Rows, options: EncodeOptions) -> int:
    """Encode the texts without a vector into shards of their own and add them to `rows`; return how many they were."""
    folder, begun = job.local_folder, _resumed_manifest(job, manifest)
    earlier = [(folder, entry) for entry in begun.shards.values()]
    rows.add(earlier)
    before, first = begun.rows, max(begun.shards, default=-1) + 1
    stream = in_shards(_unknown_texts(job, rows), job.shard_rows, first=first)
    encode_shards(encoder, stream, job, begun, options)
    rows.add([(folder, entry) for number, entry in begun.shards.items() if number >= first])
    manifest.dimensions, manifest.ranges = begun.dimensions, begun.ranges
    return begun.rows - before


def _resumed_manifest(job: Job, manifest: Manifest) -> Manifest:
    """Return the manifest of what a stopped update has encoded, if it can be used; else a new one."""
    folder = job.local_folder
    try:
        begun = read_manifest(folder)
        require_same(begun, manifest, folder, apart_from=OF_THE_CORPUS)
        begun.shards = {number: entry for number, entry in begun.shards.items() if is_whole(folder, entry)}
        if manifest.dimensions is None or begun.ranges == manifest.ranges:
            return begun
    except (FileNotFoundError, FileExistsError, ValueError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return replace(manifest, shards={})


def _unknown_texts(job: Job, rows: _Rows) -> Iterator[Text]:
    """Yield the rows whose texts have no vector, one per text."""
    seen = Seen()
    for shard in shards(job, unlisted_rejects(job)):
        if shard.sha256 not in rows.unchanged:
            positions, _, _ = rows.find(shard)
            unknown = [row for row, position in zip(shard.rows, positions, strict=True) if position < 0]
            yield from compress(unknown, seen.add([row.text for row in unknown]))


def _assemble(job: Job, manifest: Manifest, rows: _Rows) -> tuple[Changes, int]:
    """Write the next version of the folder from stored vectors; return changes, and the number of unchanged shards."""
    folder, unchanged, same, changed = job.local_folder, 0, 0, 0
    with job_rejects(job) as rejects:
        for shard in shards(job, rejects):
            if shard.sha256 in rows.unchanged:
                file, entry = rows.unchanged[shard.sha256]
                entry = replace(entry, file=shard_name(shard.number))
                link_or_copy(file, folder / entry.file)
                write_hashes(folder, shard)
                unchanged, same = unchanged + 1, same + entry.rows
            else:
                positions, has_text, has_other = rows.find(shard)
                if (positions < 0).any():
                    raise ValueError(f"{job.input} changed while it was read; give the command again")
                entry = write_codes(shard, rows.codes(positions), job, cut=None if job.precision == "int8" else 0)
                same, changed = same + int(has_text.sum()), changed + int(has_other.sum())
            manifest.shards[shard.number] = entry
    if not manifest.rows:
        raise ValueError(f"{job.input} holds no rows that can be encoded")
    check_unchanged(job, manifest.made_of, "give the command again")
    manifest.rejected, manifest.complete = rejects.count, True
    manifest.write(folder)
    new, dropped = manifest.rows - same - changed, max(rows.ids.count - same - changed, 0)
    return Changes(kept=same, changed=changed, new=new, dropped=dropped), unchanged
