"""Shards of vectors: a Parquet file each, hashes of its texts, and the manifest of what a folder was made of.

A file of hashes holds 16 bytes per row and ends with a sha256 of them and of the shard that they belong to.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from embrew.corpus.job import ABOUT, MANIFEST, Job, Ranges, quantize
from embrew.corpus.rows import Shard, corpus_files, fingerprint, text_hashes
from embrew.files.checksums import digest_of, file_sha256
from embrew.files.formats import VECTORS
from embrew.files.reading import content_of, read_json
from embrew.files.writing import atomic_path, write_json
from embrew.model.batching import NotFinite, default_batch_tokens
from embrew.storage.base_model import check_speed
from embrew.stores import Place, local_copy
from embrew.text_encoder import BLOCK, EncodeOptions, TextEncoder, describe_run, encode_options

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
        passport: sha256 of the model's passport in `__embrew__`; None: it has none there.
        shards: finished shards by number.
        rejected: number of rows that were left out.
        complete: whether the corpus is completely encoded.
    """

    made_of: dict[str, Any]
    run: dict[str, Any]
    dimensions: int | None = None
    ranges: Ranges | None = None
    passport: str | None = None
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


def device_of(encoder: TextEncoder) -> torch.device:
    """Return the device of an encoder; the CPU if it has no such attribute."""
    return torch.device(getattr(encoder, "device", None) or "cpu")


def encode_options_of(encoder: TextEncoder, job: Job, *, show_progress_bar: bool) -> EncodeOptions:
    """Return keywords for the encode methods.

    Raises:
        ValueError: the encoder does not support the job, or would be very slow.
    """
    device = device_of(encoder)
    parameters = encoder.parameters() if hasattr(encoder, "parameters") else iter(())
    check_speed(getattr(next(parameters, None), "dtype", torch.float32), device)
    batch_tokens = job.batch_tokens or default_batch_tokens(device)
    options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    if job.truncate_dim is not None:
        options["truncate_dim"] = job.truncate_dim
    if job.num_layers is not None:
        if "num_layers" not in inspect.signature(encoder.encode).parameters:
            raise ValueError(
                f"num_layers={job.num_layers}: a {type(encoder).__name__} cannot stop after some of its layers; leave "
                "it out, or encode with an encoder of embrew"
            )
        options["num_layers"] = job.num_layers
    return options


def shard_vectors(encoder: TextEncoder, shard: Shard, job: Job, options: EncodeOptions) -> np.ndarray:
    """Return the float32 `(rows, dimensions)` vectors of a shard; that of a blank text may be zero.

    Raises:
        ValueError: a vector is zero or not finite; names the row.
    """
    method = encoder.encode_query if job.prompt_name == "query" else encoder.encode_document
    try:
        vectors: np.ndarray = np.asarray(method([row.text for row in shard.rows], **options), dtype=np.float32)
    except NotFinite as error:
        raise _bad_vector(shard, error.index, "not finite") from error
    if vectors.ndim != 2 or len(vectors) != len(shard.rows):
        raise ValueError(f"the encoder gave an array {vectors.shape} for {len(shard.rows)} texts")
    norms = np.linalg.norm(vectors, axis=-1)
    blank = np.array([not row.text.strip() for row in shard.rows], dtype=bool)
    for wrong, state in ((~np.isfinite(norms), "not finite"), ((norms == 0) & ~blank, "zero")):
        if wrong.any():
            raise _bad_vector(shard, int(wrong.argmax()), state)
    return vectors


def _bad_vector(shard: Shard, index: int, state: str) -> ValueError:
    row = shard.rows[index]
    return ValueError(
        f"{row.where}: the vector of the row with id {row.id!r} is {state}; the model has diverged, or its dtype "
        "overflows: try dtype float32"
    )


def write_shard(shard: Shard, vectors: np.ndarray, job: Job, ranges: Ranges | None) -> Entry:
    """Quantise and write a shard; the same rows and vectors give the same bytes."""
    codes, cut = quantize(vectors, job.precision, ranges)
    return write_codes(shard, codes, job, cut=cut)


def write_codes(shard: Shard, codes: np.ndarray, job: Job, *, cut: int | None) -> Entry:
    """Write the codes of a shard's vectors, and hashes of its texts."""
    path = job.folder / shard_name(shard.number)
    item = pa.field("item", pa.from_numpy_dtype(codes.dtype), nullable=False)
    lists = pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(codes).reshape(-1)), type=pa.list_(item, codes.shape[1])
    )
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("vector", lists.type, nullable=False)])
    table = pa.Table.from_arrays([pa.array([row.id for row in shard.rows], pa.string()), lists], schema=schema)
    with atomic_path(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="none",
            # Parquet stores small integers in 4 bytes; as indices into a dictionary of 256 values they take one.
            use_dictionary=[] if job.precision == "float32" else ["vector.list.element"],
            write_statistics=False,
        )
        size, sha256 = temporary.stat().st_size, file_sha256(temporary)
    write_hashes(job.folder, shard)
    return Entry(path.name, len(shard.rows), size, sha256, shard.sha256, cut)


@contextmanager
def verified(folder: Place, entry: Entry) -> Iterator[Path]:
    """Yield a finished shard that is as its entry in the folder's manifest says: the file, or a copy from a store.

    Raises:
        FileNotFoundError: it is missing.
        ValueError: it has changed since it was written.
    """
    path = folder / entry.file
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; give the same embrew encode again to write it")
    with local_copy(path) as file:
        if file.stat().st_size != entry.bytes or file_sha256(file) != entry.sha256:
            raise ValueError(f"{path} has changed since it was written; remove it, and the same command makes it again")
        yield file


def is_whole(folder: Place, entry: Entry) -> bool:
    """Return whether a finished shard is there; from a store, it is read for this. Errors as for `verified`."""
    try:
        with verified(folder, entry):
            return True
    except FileNotFoundError:
        return False


def read_blocks(path: Path) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yield ids and codes of `BLOCK` rows at a time: to read a shard at once takes several times its memory."""
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        for batch in file.iter_batches(batch_size=BLOCK):
            lists = batch.column("vector")
            codes = lists.flatten().to_numpy(zero_copy_only=True).reshape(-1, lists.type.list_size)
            yield batch.column("id").to_pylist(), codes


def read_shard(path: Path) -> tuple[list[str], np.ndarray]:
    """Return ids and codes `(rows, columns)` of a shard."""
    ids, codes = zip(*read_blocks(path), strict=True)
    return [name for block in ids for name in block], np.concatenate(codes)


def write_hashes(folder: Place, shard: Shard) -> None:
    """Write the hashes of a shard's texts."""
    data = text_hashes(row.text for row in shard.rows).tobytes()
    with atomic_path(_hashes_path(folder, shard_name(shard.number))) as temporary:
        temporary.write_bytes(data + _seal(data, shard.sha256))


def read_hashes(folder: Place, entry: Entry) -> np.ndarray | None:
    """Return the hashes of a shard's texts, uint64 `(rows, 2)`; None where they are missing or damaged."""
    try:
        content = _hashes_path(folder, entry.file).read_bytes()
    except FileNotFoundError:
        return None
    data = content[: entry.rows * 16]
    is_sealed = content[len(data) :] == _seal(data, entry.input_sha256)
    return np.frombuffer(data, dtype="<u8").reshape(-1, 2) if is_sealed else None


def _hashes_path(folder: Place, file: str) -> Place:
    return folder / f"{ABOUT}/{file.removesuffix('.parquet')}.texts"


def _seal(data: bytes, input_sha256: str) -> bytes:
    return hashlib.sha256(input_sha256.encode() + data).digest()
