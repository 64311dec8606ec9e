"""Encode a corpus with Ray Data: one actor per device, one shard per block, the same files as `encode_corpus` writes.

One task reads the corpus in order and streams shards to the actors, which encode and write them and return their
entries in the manifest. All machines must see input and output folder under the same path, or in the same store.

Ray starts an actor that dies again, and its shard is encoded again, `TRIES` times in all, since a shard may be the
reason. Ray Data has no such limit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from embrew.corpus.encoding import Summary, add_shard, run, set_dimensions, unfinished
from embrew.corpus.job import Job
from embrew.corpus.rows import Shard, Text, job_rejects, shards, unlisted_rejects
from embrew.corpus.shards import (
    Entry,
    Manifest,
    encode_options_of,
    new_manifest,
    shard_name,
    shard_vectors,
    write_shard,
)
from embrew.data.reading import expand
from embrew.extras import import_extra
from embrew.stores import Place, place_of
from embrew.text_encoder import TextEncoder

Opener = Callable[[], TextEncoder]
TRIES = 6


def encode_corpus_on_ray(open_encoder: Opener, input: str | Place, output: str | Place, **settings: Any) -> Summary:
    """Run `encode_corpus` on all devices of a Ray cluster (one on this machine if there is no other).

    Args:
        open_encoder: returns the encoder; called in every actor, so it must be importable there.
        input, output: in a store, or on a file system that all machines share.
        **settings: the fields of `Job`.

    Raises:
        ImportError: Ray is not installed.
        ChildProcessError: actors died over one shard again and again, for example because memory ran out.
    """
    import_extra("ray.data", "ray", "the ray engine")
    import ray
    import ray.data

    job = Job(input=_absolute(expand(str(input))), output=_absolute(output), **settings)
    if not ray.is_initialized():
        ray.init(include_dashboard=False)
    gpus = int(ray.cluster_resources().get("GPU", 0))
    devices = gpus or sum(node["Alive"] for node in ray.nodes())
    resources: dict[str, Any] = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    tries: Any = ray.remote(_tries()).options(num_cpus=0, max_restarts=-1, max_task_retries=-1).remote()

    def on_device(function: Callable[..., Any], *arguments: Any) -> Any:
        return ray.get(ray.remote(function).options(**resources).remote(open_encoder, job, *arguments))

    def work(manifest: Manifest, finished: set[int]) -> tuple[int, int]:
        if manifest.dimensions is None:
            set_dimensions(manifest, on_device(_first_vectors), job)
        context = ray.data.DataContext.get_current()
        block_size = context.target_max_block_size
        context.target_max_block_size = 1  # bytes: each shard is a block, which any actor may encode
        counts = (0, 0)
        try:
            actors = {"compute": ray.data.ActorPoolStrategy(size=devices), **resources}
            for row in _encoded(open_encoder, job, manifest, finished, tries, actors).iter_rows():
                done = json.loads(row["done"])
                if "died" in done:
                    raise ChildProcessError(
                        f"actors died {TRIES} times while they encoded {done['died']}; Ray's logs have the reason (if "
                        "it is memory: a smaller batch_tokens). Finished shards are kept, and the same command resumes"
                    )
                if "counts" in done:
                    counts = (done["counts"][0], done["counts"][1])
                else:
                    add_shard(manifest, done["number"], Entry(**done["entry"]), job)
        finally:
            context.target_max_block_size = block_size
        return counts

    return run(job, on_device(_begin), work)


def _encoded(
    open_encoder: Opener, job: Job, manifest: Manifest, finished: set[int], tries: Any, actors: dict[str, Any]
) -> Any:
    """Return the data set of what `_Encode` gives for the shards that are not finished."""
    import ray.data

    read: Any = _read
    return (
        ray.data.from_items([0], override_num_blocks=1)
        .map_batches(
            read,
            batch_size=None,
            fn_kwargs={"job": job, "manifest": manifest, "finished": finished},
            num_cpus=0.5,  # differs from that of the actors, so that Ray does not merge the two steps
        )
        .map_batches(_Encode, batch_size=1, fn_constructor_args=(open_encoder, job, manifest, tries), **actors)
    )


def _absolute(path: str | Place) -> str:
    """Return a path or URL that means the same in every process."""
    location = place_of(path)
    return str(location.resolve() if isinstance(location, Path) else location)


def _begin(open_encoder: Opener, job: Job) -> Manifest:
    """Return the manifest of the job, made on a device of the cluster, where the encoder may open in another dtype."""
    encoder = open_encoder()
    encode_options_of(encoder, job, show_progress_bar=False)
    return new_manifest(encoder, job)


def _first_vectors(open_encoder: Opener, job: Job) -> np.ndarray:
    """Return the vectors of the first shard, which set dimensions and int8 ranges."""
    encoder = open_encoder()
    first = next(shards(job, unlisted_rejects(job)), None)
    if first is None:
        raise ValueError(f"{job.input} holds no rows that can be encoded")
    return shard_vectors(encoder, first, job, encode_options_of(encoder, job, show_progress_bar=False))


def _read(
    _: dict[str, np.ndarray], *, job: Job, manifest: Manifest, finished: set[int]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield shards, one per row, since Ray never splits a row over two blocks; and at last the counts of the corpus."""
    with job_rejects(job) as rejects:
        for shard in unfinished(job, manifest, finished, rejects):
            yield {"packed": np.array([json.dumps({"shard": shard})], dtype=object)}
    yield {"packed": np.array([json.dumps({"counts": (rejects.rows, rejects.count)})], dtype=object)}


def _tries() -> type:
    """Return the class of an actor that counts tries: a local class, so that the actor need not import this module."""

    class Tries:
        def __init__(self) -> None:
            self.begun: Counter[int] = Counter()

        def begin(self, number: int) -> int:
            """Return how often a shard was begun, this time included."""
            self.begun[number] += 1
            return self.begun[number]

    return Tries


class _Encode:
    """An actor with an encoder on one device."""

    def __init__(self, open_encoder: Opener, job: Job, manifest: Manifest, tries: Any) -> None:
        self.encoder = open_encoder()
        self.job, self.manifest, self.tries = job, manifest, tries
        self.options = encode_options_of(self.encoder, job, show_progress_bar=False)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        import ray

        done = []
        for packed in map(json.loads, batch["packed"]):
            if "shard" in packed:
                number, rows, sha256 = packed["shard"]
                if ray.get(self.tries.begin.remote(number)) > TRIES:
                    done.append(json.dumps({"died": shard_name(number)}))
                    continue
                shard = Shard(number, [Text(*row) for row in rows], sha256)
                vectors = shard_vectors(self.encoder, shard, self.job, self.options)
                set_dimensions(self.manifest, vectors, self.job)
                entry = write_shard(shard, vectors, self.job, self.manifest.ranges)
                packed = {"number": number, "entry": asdict(entry)}
            done.append(json.dumps(packed))
        return {"done": np.array(done, dtype=object)}
