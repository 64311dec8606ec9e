"""The manifest of a folder of vectors: what they were made of, and which shards are finished."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from embrew.corpus.job import MANIFEST, Job, Ranges
from embrew.corpus.rows import corpus_files, fingerprint
from embrew.files.checksums import digest_of
from embrew.files.formats import VECTORS
from embrew.files.reading import content_of, read_json
from embrew.files.writing import write_json
from embrew.stores import Place
from embrew.text_encoder import TextEncoder, describe_run

logger = logging.getLogger(__name__)

REPAIR = "restore it from a copy of the folder, or encode into another folder"


@dataclass(frozen=True)
class Entry:
    """A finished shard.

    Attributes:
        file: name of the file.
        rows: number of vectors.
        bytes, sha256: size and hash of the file.
        input_sha256: hash of the ids and texts that were encoded.
        cut: number of clipped values, outside the int8 ranges; None if codes were copied from several shards.
    """

    file: str
    rows: int
    bytes: int
    sha256: str
    input_sha256: str
    cut: int | None = 0


@dataclass
class Manifest:
    """Content of a folder of vectors.

    Attributes:
        made_of: all that decides the vectors; a run with other values is refused.
        run: what may differ between runs: versions, batch size.
        dimensions: dimensions of a vector before it is quantised; None before the first one.
        ranges: ranges of int8 codes, of the first shard.
        shards: finished shards by number.
        rejected: number of rows that were left out.
        complete: whether the corpus is completely encoded.
    """

    made_of: dict[str, Any]
    run: dict[str, Any]
    dimensions: int | None = None
    ranges: Ranges | None = None
    shards: dict[int, Entry] = field(default_factory=dict)
    rejected: int = 0
    complete: bool = False

    @property
    def rows(self) -> int:
        """Number of vectors in finished shards."""
        return sum(entry.rows for entry in self.shards.values())

    def write(self, folder: Place) -> None:
        """Write the manifest atomically."""
        shards = [asdict(self.shards[number]) for number in sorted(self.shards)]
        values = {"format": VECTORS.number, "rows": self.rows, **asdict(self), "shards": shards}
        write_json(folder / MANIFEST, {**values, "sha256": digest_of(values)})


def read_manifest(folder: Place) -> Manifest:
    """Read the manifest of a folder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: embrew did not write it, it has another format number, or it has changed since.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no vectors (no {MANIFEST}); make them with embrew encode")
    values = read_json(path, kind=VECTORS, repair=REPAIR)
    with content_of(path, repair=REPAIR):
        if values.pop("sha256") != digest_of(values):
            raise ValueError("it has changed since it was written: its sha256 differs")
        entries = [Entry(**entry) for entry in values["shards"]]
        shards = {int(entry.file.removeprefix("part-").removesuffix(".parquet")): entry for entry in entries}
        if [entry.file for entry in entries] != [shard_name(number) for number in shards]:
            raise ValueError("it names a file that is not a shard of this folder")
        ranges = values["ranges"] and Ranges(**{name: tuple(each) for name, each in values["ranges"].items()})
        stored = {field.name: values[field.name] for field in fields(Manifest)}
        return Manifest(**{**stored, "shards": shards, "ranges": ranges})


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"part-{number:05d}.parquet"


def new_manifest(encoder: TextEncoder, job: Job) -> Manifest:
    """Return the manifest of a job without finished shards."""
    described = describe_run(encoder)
    settings = ("prompt_name", "num_layers", "precision", "id_column", "text_column", "shard_rows")
    made_of = {
        **{name: described[name] for name in ("model", "model_hash", "tokenizer_sha256", "dtype")},
        **{name: getattr(job, name) for name in settings},
        "prompt": described["resolved_prompts"][job.prompt_name],
        "truncate_dim": job.truncate_dim or described["truncate_dim"],
        "input": fingerprint(corpus_files(job.input)),
    }
    run = {"versions": described["versions"], "batch_tokens": job.batch_tokens}
    return Manifest(json.loads(json.dumps(made_of)), run)


def require_same(earlier: Manifest, now: Manifest, folder: Place, *, apart_from: Collection[str] = ()) -> None:
    """Raise if the vectors of a folder were made of something else than the job's; warn of other library versions.

    Args:
        earlier: manifest of the folder.
        now: manifest of the job.
        folder: for the message.
        apart_from: keys of `made_of` that may differ.

    Raises:
        FileExistsError: they were; names what differs.
    """
    before, current = earlier.made_of, now.made_of
    different = [key for key in sorted({*before, *current} - {*apart_from}) if before.get(key) != current.get(key)]
    if different:
        names = ", ".join(_difference(key, before.get(key), current.get(key)) for key in different)
        todo = "choose another folder, or give the command as it was"
        if different == ["input"]:
            todo += ", or update the folder to the current corpus (--update, update_corpus)"
        raise FileExistsError(f"{folder} holds vectors made of another {names}; {todo}")
    if earlier.run["versions"] != now.run["versions"]:
        logger.warning("%s was begun with other versions of the libraries: %s", folder, earlier.run["versions"])


def _difference(key: str, earlier: Any, now: Any) -> str:
    plain = all(isinstance(value, str | int | None) and len(str(value)) <= 40 for value in (earlier, now))
    return f"{key} ({earlier!r} there, {now!r} now)" if plain else key
