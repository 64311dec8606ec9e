"""The lock of a prefix in a store: one writer, takeovers, and processes that have lost it and do not know."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from embrew.corpus import encode_corpus, read_vectors
from embrew.corpus.job import Job
from embrew.corpus.layout import MANIFEST
from embrew.corpus.manifest import new_manifest
from embrew.corpus.on_ray import _Encode, _read
from embrew.stores import locks as store_locks
from embrew.stores import requests as store_requests
from embrew.stores.locks import _Lock, leased
from embrew.stores.paths import place_of
from tests.corpus.stores import FakeStore, objects, put
from tests.corpus.stub import Stub, open_stub

LOST = "another process took over gs://bucket/out"


def test_a_second_writer_is_refused_while_the_first_one_runs(store: type[FakeStore], corpus: Path):
    with (
        leased(place_of("gs://bucket/out"), "encoding into"),
        pytest.raises(FileExistsError, match=r"another process \(process \d+ on .*\) is encoding into gs://bucket/out"),
    ):
        encode_corpus(Stub(), corpus, "gs://bucket/out")
    assert objects(store, "bucket/out") == {}
    assert encode_corpus(Stub(), corpus, "gs://bucket/out").rows == 60


def test_of_several_writers_at_once_one_goes_on(store: type[FakeStore], corpus: Path, monkeypatch):
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(encode_corpus(Stub(wait=0.1), corpus, "gs://bucket/out", shard_rows=20).rows)
        except FileExistsError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(60) == 1 and sum("another process" in str(one) for one in outcomes) == 3


def test_the_lock_of_a_killed_process_is_taken_over(
    store: type[FakeStore], corpus: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_locks, "LEASE", 0.3)
    put(f"bucket/out/{store_locks.LOCK}", b"0123456789abcdef elsewhere 77 4\n")
    assert encode_corpus(Stub(), corpus, "gs://bucket/out").rows == 60
    assert "locked by process 77 on elsewhere; waiting" in caplog.text and "no longer runs" in caplog.text
    assert store_locks.LOCK not in objects(store, "bucket/out")


def test_a_process_that_was_suspended_stops_before_its_next_write(store: type[FakeStore], corpus: Path):
    class Suspended(Stub):
        def encode_document(self, inputs, **options):
            if len(self.asked) == 2:
                put(f"bucket/out/{store_locks.LOCK}", b"fedcba9876543210 elsewhere 78 0\n")
            return super().encode_document(inputs, **options)

    with pytest.raises(FileExistsError, match="another process took over gs://bucket/out"):
        encode_corpus(Suspended(), corpus, "gs://bucket/out", shard_rows=10)
    assert json.loads(objects(store, "bucket/out")[MANIFEST])["rows"] == 20
    assert not any("part-00002" in name for name in objects(store, "bucket/out")), "neither a shard nor its hashes"
    assert b"elsewhere" in objects(store, "bucket/out")[store_locks.LOCK], "the lock of the other is left"


def test_a_created_lock_whose_answer_was_lost_is_ours(
    store: type[FakeStore], corpus: Path, monkeypatch: pytest.MonkeyPatch
):
    real, lost = FakeStore.pipe_file, []

    def pipe_file(self, path, value, mode="overwrite", **options):
        real(self, path, value, mode=mode, **options)
        if mode == "create" and not lost:
            lost.append(path)
            raise ConnectionResetError("after the object was written")

    monkeypatch.setattr(FakeStore, "pipe_file", pipe_file)
    assert encode_corpus(Stub(), corpus, "gs://bucket/out").rows == 60 and lost


def finished_by_another(store: type[FakeStore], corpus: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Let another process take over `gs://bucket/out` and finish it, with other last bits; return its objects."""
    stub = Stub()
    monkeypatch.setattr(stub, "encode_document", lambda texts, **more: Stub().encode(texts, **more) + np.float32(1e-6))
    FakeStore().rm_file(f"bucket/out/{store_locks.LOCK}")
    with monkeypatch.context() as other:
        other.setattr(store_locks, "_held", {})
        for prefix in list(store_requests.guards):
            other.delitem(store_requests.guards, prefix)
        encode_corpus(stub, corpus, "gs://bucket/out", shard_rows=10)
    return objects(store, "bucket/out")


@pytest.mark.parametrize("writes", range(6))
def test_a_process_that_lost_its_lock_writes_nothing(
    writes: int, store: type[FakeStore], corpus: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is suspended before any of the requests that write a shard, its hashes or the manifest."""
    left, finished = [writes], {}

    def suspended(name: str) -> None:
        real = getattr(FakeStore, name)

        def request(self, *given, **options):
            path = given[1] if name == "put_file" else given[0]
            if "part-0000" in path or path.endswith(MANIFEST):
                left[0] -= 1
                if left[0] == -1:  # the request fails; until it is sent again, another process has finished the folder
                    finished.update(finished_by_another(store, corpus, monkeypatch))
                    raise ConnectionResetError("reset")
            return real(self, *given, **options)

        monkeypatch.setattr(FakeStore, name, request)

    suspended("put_file")
    suspended("pipe_file")
    with pytest.raises(FileExistsError, match=LOST):
        encode_corpus(Stub(), corpus, "gs://bucket/out", shard_rows=10)
    assert finished and objects(store, "bucket/out") == finished
    assert len(read_vectors("gs://bucket/out").load()[0]) == 60


def test_actors_of_a_run_that_lost_its_lock_write_nothing(
    store: type[FakeStore], corpus: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda value: value))
    tries = SimpleNamespace(begin=SimpleNamespace(remote=lambda number: 1))
    job = Job(input=str(corpus), output="gs://bucket/out", shard_rows=20)
    manifest = new_manifest(Stub(), job)
    manifest.dimensions = 16
    with leased(job.folder, "encoding into"):
        holder = store_locks.holder_of(job.folder)
    assert holder is not None and store_locks.holder_of(corpus) is None

    def encode(number: int) -> None:
        shards = list(_read({}, job=job, manifest=manifest, keep=set(), holder=holder))
        _Encode(open_stub, job, manifest, tries, holder)({"packed": shards[number]["packed"]})

    lock = f"bucket/out/{store_locks.LOCK}"
    put(lock, f"{holder} here 1 0\n".encode())
    encode(0)
    written = objects(store, "bucket/out")
    assert "part-00000.parquet" in written and not store_requests.guards
    put(lock, b"fedcba9876543210 elsewhere 78 0\n")
    with pytest.raises(FileExistsError, match=LOST):
        encode(1)
    assert set(objects(store, "bucket/out")) == set(written)


def acquired(names: str) -> dict[str, _Lock]:
    """The locks that threads of these names acquire at once, as processes would."""
    locks = {}

    def acquire(name: str) -> None:
        lock = _Lock(place_of("gs://bucket/out"), "encoding into")
        with suppress(FileExistsError):
            lock.acquire()
            locks[name] = lock

    threads = [threading.Thread(target=acquire, args=(name,), name=name) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return locks


def test_of_two_that_take_over_one_goes_on(store: type[FakeStore], monkeypatch: pytest.MonkeyPatch):
    """B's request to remove the old object arrives after A has removed it and created its own."""
    monkeypatch.setattr(store_locks, "LEASE", 0.5)
    monkeypatch.setattr(store_locks, "SETTLE", 1.0)
    put(f"bucket/out/{store_locks.LOCK}", b"0123456789abcdef elsewhere 77 4\n")
    removed, created = FakeStore.rm_file, FakeStore.pipe_file
    late, there = threading.Event(), threading.Event()

    def rm_file(self, path):
        if threading.current_thread().name == "B" and not late.is_set():
            late.set()
            assert there.wait(20)
        elif threading.current_thread().name == "A":
            assert late.wait(20)
        return removed(self, path)

    def pipe_file(self, path, value, mode="overwrite", **options):
        created(self, path, value, mode=mode, **options)
        if threading.current_thread().name == "A":
            there.set()

    monkeypatch.setattr(FakeStore, "rm_file", rm_file)
    monkeypatch.setattr(FakeStore, "pipe_file", pipe_file)
    (lock,) = acquired("AB").values()
    lock.check()
    assert late.is_set() and there.is_set()
    lock.release()
    assert objects(store, "bucket/out") == {}


def on_create(monkeypatch: pytest.MonkeyPatch, before: Callable[[FakeStore, str], None]) -> None:
    """Let the store ignore the condition of a create, after a function was called."""
    real = FakeStore.pipe_file

    def pipe_file(self, path, value, mode="overwrite", **options):
        if mode == "create":
            before(self, path)
        real(self, path, value, mode="overwrite", **options)

    monkeypatch.setattr(FakeStore, "pipe_file", pipe_file)


def test_a_server_that_ignores_conditions(store: type[FakeStore], corpus: Path, monkeypatch: pytest.MonkeyPatch):
    on_create(monkeypatch, lambda store, path: None)
    with leased(place_of("gs://bucket/out"), "encoding into"):
        assert acquired("B") == {}
        store_requests.guards["gs://bucket/out"]()
    monkeypatch.setattr(store_locks, "CONFIRM", 0.5)
    both = threading.Barrier(2)
    on_create(monkeypatch, lambda store, path: both.wait(20) and None)
    (lock,) = acquired("AB").values()
    lock.check()
    lock.release()


def test_a_server_whose_refusal_names_no_condition(
    store: type[FakeStore], corpus: Path, monkeypatch: pytest.MonkeyPatch
):
    """s3fs makes an `OSError` (EINVAL) of a 412 without the element `<Condition>`."""

    def refuse(store: FakeStore, path: str) -> None:
        if store.exists(path):
            raise OSError(22, "At least one of the pre-conditions you specified did not hold")

    on_create(monkeypatch, refuse)
    lock = place_of(f"gs://bucket/out/{store_locks.LOCK}")
    lock.create(b"0123456789abcdef elsewhere 77 4\n")
    with pytest.raises(FileExistsError, match=r"gs://bucket/out/__embrew__/lock: exists already"):
        lock.create(b"mine\n")
    monkeypatch.setattr(store_locks, "LEASE", 0.3)
    assert encode_corpus(Stub(), corpus, "gs://bucket/out").rows == 60

    def fail(store: FakeStore, path: str) -> None:
        raise OSError(38, "A header you provided implies functionality that is not implemented")

    on_create(monkeypatch, fail)
    with pytest.raises(OSError, match="not implemented"):
        place_of("gs://bucket/new").create(b"")
