"""Encode a corpus on this machine, shard by shard."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embrew.corpus.corpus import Shard, job_rejects, shards
from embrew.corpus.hashes import read_hashes, text_hashes, write_hashes
from embrew.corpus.ids import Ids
from embrew.corpus.input_files import corpus_files, expected_rows, fingerprint, say_unread
from embrew.corpus.job import Job
from embrew.corpus.layout import MANIFEST, REJECTS, check_writable, remove_leftovers, restore, scratch_of
from embrew.corpus.manifest import Entry, Manifest, new_manifest, read_manifest, require_same
from embrew.corpus.precision import Ranges
from embrew.corpus.shards import (
    device_of,
    encode_options_of,
    is_whole,
    shard_vectors,
    write_shard,
)
from embrew.files.writing import claimed
from embrew.model.batching import ahead
from embrew.progress import progress
from embrew.search import Changes
from embrew.stores.locks import leased
from embrew.stores.paths import Place, StorePath
from embrew.text_encoder.interface import TextEncoder

logger = logging.getLogger(__name__)


class End(NamedTuple):
    """Counts of a corpus that was read: rows that can be encoded, and rejected rows."""

    rows: int
    rejected: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Content of a folder after a run.

    Attributes:
        rows: number of vectors.
        dimensions: dimensions of a vector before it is quantised.
        shards: number of files.
        kept: number of files of earlier runs that were kept.
        rejected: number of rows that were left out, listed in `__embrew__/rejects.jsonl`.
        bytes: size of all files.
        seconds: duration of this run.
        changes: counts of an update; None otherwise.
    """

    rows: int
    dimensions: int
    shards: int
    kept: int
    rejected: int
    bytes: int
    seconds: float
    changes: Changes | None = None


def encode_corpus(
    encoder: TextEncoder, input: str | Place, output: str | Place, *, show_progress_bar: bool = False, **settings: Any
) -> Summary:
    """Encode a corpus into a folder of Parquet shards; called again, it resumes.

    Args:
        encoder: an `Encoder`, a `SentenceTransformer`, or anything with their encode methods.
        input: the corpus; see `Job`.
        output: the folder to write, or its URL; new, or of an earlier run of the same job.
        show_progress_bar: show a progress bar; the corpus is read once more to count its rows.
        **settings: the fields of `Job`: `prompt_name`, `precision`, `truncate_dim`, `shard_rows`, `on_bad_rows`, …

    Raises:
        FileExistsError: the folder holds other vectors; names what differs.
        ConnectionError: a store does not answer; the same call resumes.
        ValueError: a row cannot be encoded, a vector is zero or not finite, a finished shard has changed.

    Examples:
        >>> summary = encode_corpus(encoder, "corpus.jsonl", "vectors", precision="int8")  # doctest: +SKIP
    """
    job = Job(input=input, output=output, **settings)
    options = encode_options_of(encoder, job, show_progress_bar=show_progress_bar)

    def work(manifest: Manifest, keep: set[int]) -> End:
        stream = unfinished(job, manifest, keep)
        total = expected_rows(corpus_files(job.input)) if show_progress_bar else None
        kept = sum(manifest.shards[number].rows for number in keep)
        with (
            progress(total, "encode", "text", shown=show_progress_bar, initial=kept) as bar,
            closing(ahead(stream) if device_of(encoder).type != "cpu" else stream) as items,
        ):
            for item in items:
                if isinstance(item, End):
                    return item
                with bar.shared():
                    vectors = shard_vectors(encoder, item, job, options)
                settle(manifest, vectors, job)
                add(manifest, item.number, write_shard(item, vectors, job, manifest.ranges), job)
        raise AssertionError("the stream has an end")

    return run(job, new_manifest(encoder, job), work)


def run(job: Job, manifest: Manifest, work: Callable[[Manifest, set[int]], End]) -> Summary:
    """Run a job with either engine: lock the folder, compare manifests, keep finished shards, write the manifest.

    Args:
        job: the job.
        manifest: manifest of this job, without shards.
        work: encodes the shards that are not among the given numbers and adds them to the manifest.
    """
    began = time.monotonic()
    say_unread(str(job.input))
    with cleared(job.folder):
        asked = manifest
        manifest = resumed(asked, job)
        kept = {number for number, entry in manifest.shards.items() if is_whole(job.folder, manifest, entry)}
        end = work(manifest, kept)
        if fingerprint(corpus_files(job.input)) != asked.made_of["input"]:
            raise ValueError(
                f"{job.input} changed while it was read; finished shards are kept, and the same command compares them "
                "with the new corpus"
            )
        if end.rows == 0:
            raise ValueError(f"{job.input} holds no rows that can be encoded")
        if manifest.rows != end.rows:
            raise ValueError(f"{job.input} has changed: it has {end.rows} rows, {job.folder} {manifest.rows}")
        manifest.rejected, manifest.complete = end.rejected, True
        manifest.made_of = asked.made_of
        manifest.write(job.folder)
        if not end.rejected:
            (job.folder / REJECTS).unlink(missing_ok=True)
    return summary_of(manifest, kept=len(kept), began=began)


def summary_of(manifest: Manifest, *, kept: int, began: float, changes: Changes | None = None) -> Summary:
    """Return the summary of a folder, and the duration of a run that began at a time of `time.monotonic`."""
    return Summary(
        rows=manifest.rows,
        dimensions=manifest.dimensions or 0,
        shards=len(manifest.shards),
        kept=kept,
        rejected=manifest.rejected,
        bytes=sum(entry.bytes for entry in manifest.shards.values()),
        seconds=time.monotonic() - began,
        changes=changes,
    )


@contextmanager
def cleared(folder: Place) -> Iterator[None]:
    """Lock the folder, create it if needed, and remove the temporary files of a killed run."""
    restore(folder)
    doing = "encoding into"
    with leased(folder, doing) if isinstance(folder, StorePath) else claimed(folder, doing):
        remove_leftovers(folder)
        check_writable(folder)
        yield


def resumed(manifest: Manifest, job: Job) -> Manifest:
    """Return the folder's manifest if it is of the same job; if there is none, write and return the given one."""
    if isinstance(job.folder, Path) and scratch_of(job.folder).exists():
        logger.warning(
            "an update of %s was stopped; --update with the same corpus resumes it, or remove %s",
            job.folder,
            scratch_of(job.folder),
        )
    if not (job.folder / MANIFEST).exists():
        manifest.write(job.folder)
        return manifest
    known = read_manifest(job.folder)
    # A corpus that was repaired after it stopped a run is another file; finished shards are compared with its rows.
    require_same(known.made_of, manifest.made_of, job.folder, apart_from=() if known.complete else ("input",))
    if known.run["versions"] != manifest.run["versions"]:
        logger.warning("%s was begun with other versions of the libraries: %s", job.folder, known.run["versions"])
    return known


def unfinished(job: Job, manifest: Manifest, keep: set[int]) -> Generator[Shard | End]:
    """Read a corpus; yield the shards that are not kept, and at last the counts.

    Raises:
        ValueError: a finished shard was made of other rows than the corpus has now, or rows are bad.
    """
    with job_rejects(job) as rejects:
        for shard in shards(job, rejects, Ids()):
            entry = manifest.shards.get(shard.number)
            if entry is not None and entry.input_sha256 != shard.sha256:
                first = shard.number * job.shard_rows
                raise ValueError(
                    f"{job.input} has changed: its rows {first + 1} to {first + len(shard.rows)} are not those that "
                    f"{job.folder / entry.file} was made of; choose another folder, or "
                    "update this one to the current corpus (--update, update_corpus)"
                )
            if shard.number not in keep:
                yield shard
            elif entry is not None and read_hashes(job.folder, entry.file, entry.rows, shard.sha256) is None:
                write_hashes(job.folder, entry.file, shard.sha256, text_hashes(row.text for row in shard.rows))
    yield End(rejects.rows - rejects.count, rejects.count)


def settle(manifest: Manifest, vectors: np.ndarray, job: Job) -> None:
    """Set dimensions and int8 ranges by the first vectors, and write them into the manifest before the first shard."""
    if manifest.dimensions is None:
        manifest.dimensions = vectors.shape[1]
        manifest.ranges = Ranges.fit(vectors) if job.precision == "int8" else None
        manifest.write(job.folder)
    elif manifest.dimensions != vectors.shape[1]:
        raise ValueError(f"vectors of {vectors.shape[1]} dimensions; {job.folder} holds some of {manifest.dimensions}")


def add(manifest: Manifest, number: int, entry: Entry, job: Job) -> None:
    """Add a finished shard to the manifest."""
    manifest.shards[number] = entry
    manifest.complete = False
    manifest.write(job.folder)
    values = entry.rows * (manifest.dimensions or 1)
    if entry.cut is not None and entry.cut > 0.01 * values:
        logger.warning(
            "%s: %.1f %% of the values lie outside the int8 ranges, which the first shard sets; make it larger "
            "(shard_rows), or choose float32",
            entry.file,
            100 * entry.cut / values,
        )
    logger.info("%s: %s rows, %s so far", entry.file, f"{entry.rows:,}", f"{manifest.rows:,}")
