"""Encode a newer version of a corpus: copy the vectors of known texts, encode new texts only.

The folder `vectors` is updated in `.vectors.update`, which has the same parent folder. Its folder `fresh` holds shards
of vectors of new texts. The next version is assembled in `new` from these and the old shards, and exchanged with
`vectors` in one step: readers see the old version or the new one. A killed run finds the texts that it has encoded in
`fresh`, also if the corpus has changed again.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from embrew.corpus.corpus import Shard, Text, job_rejects, rows_sha256, shards
from embrew.corpus.hashes import hashes_name
from embrew.corpus.input_files import corpus_files, fingerprint
from embrew.corpus.job import Job
from embrew.corpus.known import Known, Texts
from embrew.corpus.layout import MANIFEST, remove_leftovers, restore, scratch_of
from embrew.corpus.local import Summary, add, cleared, settle, summary_of
from embrew.corpus.manifest import Entry, Manifest, new_manifest, read_manifest, require_same, shard_name
from embrew.corpus.shards import (
    device_of,
    encode_options_of,
    is_whole,
    shard_vectors,
    write_codes,
    write_shard,
)
from embrew.files.writing import claimed, flush, put
from embrew.model.batching import ahead
from embrew.progress import progress
from embrew.search import Changes
from embrew.text_encoder.interface import TextEncoder

logger = logging.getLogger(__name__)

OF_THE_CORPUS = ("input", "id_column", "text_column")
"""Settings that may differ between two versions, since vectors are found by their texts."""
EVERY = 50  # number of shards that are assembled between two writes of the manifest


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
    job = replace(job, output=job.local_folder.resolve())
    restore(job.local_folder)
    read_manifest(job.local_folder)  # refused before anything is written
    if job.local_folder.parent.stat().st_dev != job.local_folder.stat().st_dev:
        raise ValueError(
            f"{job.local_folder} is a mount point and cannot be replaced in one step; encode into a folder in it"
        )
    options = encode_options_of(encoder, job, show_progress_bar=show_progress_bar)
    asked = new_manifest(encoder, job)
    with cleared(job.local_folder):
        old = read_manifest(job.local_folder)
        require_same(old.made_of, asked.made_of, job.local_folder, apart_from=OF_THE_CORPUS)
        if old.run["versions"] != asked.run["versions"]:
            logger.warning(
                "%s was made with other versions of the libraries: %s", job.local_folder, old.run["versions"]
            )
        asked.dimensions, asked.ranges = old.dimensions, old.ranges
        known = _known(job.local_folder, old)
        with _scratch(job.local_folder) as scratch:
            encoded = _encode_unknown(encoder, replace(job, output=scratch / "fresh"), asked, known, options)
            manifest, kept, changes = _put_together(replace(job, output=scratch / "new"), asked, known)
            put(scratch / "new", job.local_folder, aside=scratch / "old")
            flush(job.local_folder.parent)
            shutil.rmtree(scratch, ignore_errors=True)
    return summary_of(manifest, kept=kept, began=began, changes=replace(changes, encoded=encoded))


def _known(folder: Path, old: Manifest) -> Known:
    """Return the rows of the older version."""
    known = Known()
    for number in sorted(old.shards):
        if is_whole(folder, old, old.shards[number]):
            known.add(folder, old.shards[number], older=True)
    if known.unhashed:
        logger.warning(
            "%s: %d of %d shards have no hashes of their texts (the files are missing or damaged); their rows are kept "
            "only where a whole shard is unchanged. If you have the corpus that they were made of, stop, give embrew "
            "encode with it first, which adds the hashes, and then this",
            folder,
            known.unhashed,
            len(old.shards),
        )
    return known


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Yield the folder in which the next version is written; remove it afterwards if it is empty."""
    scratch = scratch_of(folder)
    with claimed(scratch, "updating with"):
        shutil.rmtree(scratch / "old", ignore_errors=True)  # the new version was moved in before the process ended
        try:
            yield scratch
        finally:
            if not any(scratch.rglob("part-*.parquet")):
                shutil.rmtree(scratch, ignore_errors=True)


def _begun(job: Job, asked: Manifest, *, apart_from: tuple[str, ...] = ()) -> Manifest:
    """Return the manifest that a stopped update left, if it can be used; else a new one, in an empty folder."""
    job.local_folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(job.local_folder)
    if (job.local_folder / MANIFEST).is_file():
        try:
            begun = read_manifest(job.local_folder)
            require_same(begun.made_of, asked.made_of, job.local_folder, apart_from=apart_from)
            if begun.ranges == asked.ranges or asked.dimensions is None:
                return begun
        except (ValueError, FileExistsError) as error:
            logger.info("the files of a stopped update cannot be used: %s", error)
    shutil.rmtree(job.local_folder)
    job.local_folder.mkdir()
    return Manifest(asked.made_of, asked.run, asked.dimensions, asked.ranges)


def _encode_unknown(encoder: TextEncoder, job: Job, asked: Manifest, known: Known, options: dict[str, Any]) -> int:
    """Encode the texts without a vector into separate shards and add them to `known`; return how many they were."""
    manifest = _begun(job, asked, apart_from=OF_THE_CORPUS)
    for number, entry in list(manifest.shards.items()):
        try:
            whole = is_whole(job.local_folder, manifest, entry)
        except ValueError as error:
            logger.warning("%s", error)
            whole = False
        if whole:
            known.add(job.local_folder, entry, older=False)
        else:
            del manifest.shards[number]
    made: list[Entry] = []
    stream = _unknown(job, known, first=max(manifest.shards, default=-1) + 1)
    with (
        progress(None, "encode", "text", shown=options["show_progress_bar"]) as bar,
        closing(ahead(stream) if device_of(encoder).type != "cpu" else stream) as items,
    ):
        for shard in items:
            with bar.shared():
                vectors = shard_vectors(encoder, shard, job, options)
            settle(manifest, vectors, job)
            made.append(write_shard(shard, vectors, job, manifest.ranges))
            add(manifest, shard.number, made[-1], job)
    for entry in made:
        known.add(job.local_folder, entry, older=False)
    asked.dimensions, asked.ranges = manifest.dimensions, manifest.ranges
    return sum(entry.rows for entry in made)


def _unknown(job: Job, known: Known, *, first: int) -> Generator[Shard]:
    """Yield the rows whose texts have no vector, one per text, in shards numbered from `first`."""
    taken, rows, number = Texts(), list[Text](), first
    with job_rejects(job) as rejects:
        for shard in shards(job, rejects):
            places = known.find(shard).places
            unknown = [row for row, place in zip(shard.rows, places, strict=True) if place < 0]
            new = taken.new([row.text for row in unknown]) if unknown else []
            rows += [row for row, is_new in zip(unknown, new, strict=True) if is_new]
            while len(rows) >= job.shard_rows:
                part, rows = rows[: job.shard_rows], rows[job.shard_rows :]
                yield Shard(number, part, rows_sha256(part))
                number += 1
    if rows:
        yield Shard(number, rows, rows_sha256(rows))


def _put_together(job: Job, asked: Manifest, known: Known) -> tuple[Manifest, int, Changes]:
    """Write the next version of the folder from known vectors; return its manifest, unchanged shards, and counts."""
    manifest = _begun(job, asked)
    manifest.dimensions, manifest.ranges = asked.dimensions, asked.ranges
    unchanged, total, same, changed = 0, 0, 0, 0
    with job_rejects(job) as rejects:
        for shard in shards(job, rejects):
            found = known.find(shard)
            if (found.places < 0).any():
                raise ValueError(f"{job.input} changed while it was read; give the command again")
            total, same, changed = total + len(shard.rows), same + found.same.sum(), changed + found.changed.sum()
            unchanged += shard.sha256 in known.whole
            entry = manifest.shards.get(shard.number)
            if entry and entry.input_sha256 == shard.sha256 and is_whole(job.local_folder, manifest, entry):
                continue
            if shard.sha256 in known.whole:
                entry = _linked(*known.whole[shard.sha256], job.local_folder, shard_name(shard.number))
            else:
                cut = None if job.precision == "int8" else 0
                entry = write_codes(shard, known.codes(found.places), job, cut=cut)
            manifest.shards[shard.number] = entry
            if shard.number % EVERY == EVERY - 1:
                manifest.write(job.local_folder)
    if total == 0:
        raise ValueError(f"{job.input} holds no rows that can be encoded")
    if fingerprint(corpus_files(job.input)) != asked.made_of["input"]:
        raise ValueError(f"{job.input} changed while it was read; give the command again")
    for number in [number for number in manifest.shards if number * job.shard_rows >= total]:
        (job.local_folder / manifest.shards.pop(number).file).unlink(missing_ok=True)  # of a version with more rows
    manifest.rejected, manifest.complete = rejects.count, True
    manifest.write(job.local_folder)
    flush(job.local_folder)
    dropped = max(known.ids - int(same) - int(changed), 0)
    counts = Changes(kept=int(same), changed=int(changed), new=total - int(same) - int(changed), dropped=dropped)
    return manifest, int(unchanged), counts


def _linked(folder: Path, entry: Entry, new: Path, name: str) -> Entry:
    """Link an unchanged shard into the new version, or copy it if the file system has no links; return its entry."""
    for old_name, new_name in ((entry.file, name), (hashes_name(entry.file), hashes_name(name))):
        (new / new_name).unlink(missing_ok=True)
        (new / new_name).parent.mkdir(exist_ok=True)
        if not (folder / old_name).exists():
            continue
        try:
            os.link(folder / old_name, new / new_name)
        except OSError:
            shutil.copyfile(folder / old_name, new / new_name)
            flush(new / new_name)
    return replace(entry, file=name)
