"""Encode a corpus on this machine, shard by shard."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from embrew.corpus.job import ABOUT, MANIFEST, REJECTS, Job, Ranges
from embrew.corpus.rows import Shard, corpus_files, expected_rows, fingerprint, job_rejects, shards, warn_unread
from embrew.corpus.shards import (
    Entry,
    Manifest,
    device_of,
    encode_options_of,
    is_whole,
    new_manifest,
    read_hashes,
    read_manifest,
    require_same,
    shard_vectors,
    write_hashes,
    write_shard,
)
from embrew.data.rejects import Rejects
from embrew.files.writing import claimed, recover
from embrew.model.batching import compute_ahead
from embrew.passport.of_index import PassportFiles, passport_sha256, write_files
from embrew.progress import progress
from embrew.search import Changes
from embrew.stores import Place, StorePath, locked
from embrew.text_encoder import EncodeOptions, TextEncoder

logger = logging.getLogger(__name__)


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
    encoder: TextEncoder,
    input: str | Place,
    output: str | Place,
    *,
    show_progress_bar: bool = False,
    passport: Callable[[], PassportFiles | None] | None = None,
    **settings: Any,
) -> Summary:
    """Encode a corpus into a folder of Parquet shards; called again, it resumes.

    Args:
        encoder: an `Encoder`, a `SentenceTransformer`, or anything with their encode methods.
        input: the corpus; see `Job`.
        output: the folder to write, or its URL; new, or of an earlier run of the same job.
        show_progress_bar: show a progress bar; the corpus is read once more to count its rows.
        passport: returns the files of the encoder's passport (`embrew.opening.passport_files`), which are stored with
            the vectors; called only where the folder has none.
        **settings: the fields of `Job`: `prompt_name`, `precision`, `truncate_dim`, `shard_rows`, `on_bad_rows`, …

    Raises:
        FileExistsError: the folder holds other vectors; names what differs. Or another process writes it.
        ConnectionError: a store does not answer; the same call resumes.
        ValueError: a row cannot be encoded, a vector is zero or not finite, a finished shard has changed.

    Examples:
        >>> summary = encode_corpus(encoder, "corpus.jsonl", "vectors", precision="int8")  # doctest: +SKIP
    """
    job = Job(input=input, output=output, **settings)
    options = encode_options_of(encoder, job, show_progress_bar=show_progress_bar)

    def work(manifest: Manifest, finished: set[int]) -> tuple[int, int]:
        total = expected_rows(corpus_files(job.input)) if show_progress_bar else None
        with job_rejects(job) as rejects:
            stream = unfinished(job, manifest, finished, rejects)
            encode_shards(encoder, stream, job, manifest, options, total=total)
        return rejects.rows, rejects.count

    return run(job, new_manifest(encoder, job), work, passport=passport)


def run(
    job: Job,
    manifest: Manifest,
    work: Callable[[Manifest, set[int]], tuple[int, int]],
    *,
    passport: Callable[[], PassportFiles | None] | None = None,
) -> Summary:
    """Run a job with either engine: lock the folder, compare manifests, keep finished shards, write the manifest.

    Args:
        job: the job.
        manifest: manifest of this job, without shards.
        work: encodes the shards that are not among the given numbers and adds them to the manifest; returns the number
            of rows of the corpus, and of bad ones.
        passport: as of `encode_corpus`.
    """
    began = time.monotonic()
    warn_unread(job.input)
    with claimed_folder(job.folder):
        made_of = manifest.made_of
        earlier = read_manifest(job.folder) if (job.folder / MANIFEST).is_file() else None
        if earlier is not None and earlier.shards:
            # A corpus that was repaired after it stopped a run is another file; finished shards are compared with it.
            require_same(earlier, manifest, job.folder, apart_from=() if earlier.complete else ("input",))
            manifest = earlier
        else:
            manifest.write(job.folder)
        if manifest.passport is None and passport is not None and (files := passport()) is not None:
            write_files(files, job.folder / ABOUT)
            manifest.passport = passport_sha256(files)
            manifest.write(job.folder)
        finished = {number for number, entry in manifest.shards.items() if is_whole(job.folder, entry)}
        rows, rejected = work(manifest, finished)
        check_unchanged(
            job, made_of, "finished shards are kept, and the same command compares them with the new corpus"
        )
        if rows == rejected:
            raise ValueError(f"{job.input} holds no rows that can be encoded")
        if manifest.rows != rows - rejected:
            raise ValueError(
                f"{job.input} has changed: it has {rows - rejected} rows, {job.folder} {manifest.rows}; choose another "
                "folder, or update this one to the current corpus (--update, update_corpus)"
            )
        manifest.rejected, manifest.complete, manifest.made_of = rejected, True, made_of
        manifest.write(job.folder)
        if not rejected:
            (job.folder / REJECTS).unlink(missing_ok=True)
    return summary_of(manifest, kept=len(finished), began=began)


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
def claimed_folder(folder: Place) -> Iterator[None]:
    """Lock the folder for this process, and refuse one that holds something else than vectors."""
    if not isinstance(folder, StorePath):
        recover(folder)
    doing = "encoding into"
    with locked(folder, doing) if isinstance(folder, StorePath) else claimed(folder, doing):
        if not (folder / MANIFEST).is_file() and any(entry.name != ABOUT for entry in folder.iterdir()):
            raise FileExistsError(f"{folder} holds no {MANIFEST}, so it was not written by embrew; it is left alone")
        yield


def check_unchanged(job: Job, made_of: dict[str, Any], todo: str) -> None:
    """Raise if the corpus is no longer that of the beginning."""
    if fingerprint(corpus_files(job.input)) != made_of["input"]:
        raise ValueError(f"{job.input} changed while it was read; {todo}")


def unfinished(job: Job, manifest: Manifest, finished: set[int], rejects: Rejects) -> Generator[Shard]:
    """Read a corpus; yield the shards that are not finished.

    Raises:
        ValueError: a finished shard was made of other rows than the corpus has now, or rows are bad.
    """
    for shard in shards(job, rejects):
        entry = manifest.shards.get(shard.number)
        if entry is not None and entry.input_sha256 != shard.sha256:
            first = shard.number * job.shard_rows
            raise ValueError(
                f"{job.input} has changed: its rows {first + 1} to {first + len(shard.rows)} are not those that "
                f"{job.folder / entry.file} was made of; choose another folder, or update this one to the current "
                "corpus (--update, update_corpus)"
            )
        if shard.number not in finished:
            yield shard
        elif entry is not None and read_hashes(job.folder, entry) is None:
            write_hashes(job.folder, shard)


def encode_shards(
    encoder: TextEncoder,
    stream: Generator[Shard],
    job: Job,
    manifest: Manifest,
    options: EncodeOptions,
    *,
    total: int | None = None,
) -> None:
    """Encode shards, write them and add them to the manifest; a GPU does not wait for the next one to be read."""
    with (
        progress(total, "encode", "text", show=options["show_progress_bar"], initial=manifest.rows) as bar,
        closing(compute_ahead(stream) if device_of(encoder).type != "cpu" else stream) as items,
    ):
        for shard in items:
            with bar.shared():
                vectors = shard_vectors(encoder, shard, job, options)
            set_dimensions(manifest, vectors, job)
            add_shard(manifest, shard.number, write_shard(shard, vectors, job, manifest.ranges), job)


def set_dimensions(manifest: Manifest, vectors: np.ndarray, job: Job) -> None:
    """Set dimensions and int8 ranges by the first vectors, and write them into the manifest before the first shard."""
    if manifest.dimensions is None:
        manifest.dimensions = vectors.shape[1]
        manifest.ranges = Ranges.fit(vectors) if job.precision == "int8" else None
        manifest.write(job.folder)
    elif manifest.dimensions != vectors.shape[1]:
        raise ValueError(f"vectors of {vectors.shape[1]} dimensions; {job.folder} holds some of {manifest.dimensions}")


def add_shard(manifest: Manifest, number: int, entry: Entry, job: Job) -> None:
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
