"""Corpora and vectors in a store: the same bytes as in folders; killed, failing, locked and wrong stores."""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from fsspec.registry import _registry

import embrew.stores
from embrew.corpus import encode_corpus, holds_vectors, read_vectors, texts_of, update_corpus
from embrew.corpus.job import MANIFEST, REJECTS
from embrew.stores import LOCK, StorePath, explain_error, locked, place_of
from tests.corpus.conftest import TEXTS
from tests.corpus.stores import FakeStore, objects, put
from tests.corpus.stub import Stub
from tests.corpus.test_resume import content


@pytest.mark.parametrize(("scheme", "precision"), [("gs", "int8"), ("hf", "float32")])
def test_the_same_bytes_as_in_a_folder(scheme, precision, store, corpus, tmp_path):
    with corpus.open("a") as file:
        file.write("{\n")
    put("bucket/corpus.jsonl", corpus.read_bytes())
    settings = {"precision": precision, "shard_rows": 7, "on_bad_rows": "skip", "max_reject_rate": 0.1}
    encode_corpus(Stub(), corpus, tmp_path / "local", **settings)
    url = f"{scheme}://bucket/vectors/"
    summary = encode_corpus(Stub(), f"{scheme}://bucket/corpus.jsonl", url, show_progress_bar=True, **settings)
    assert (summary.rows, summary.shards, summary.rejected) == (60, 9, 1)
    local, there = content(tmp_path / "local"), objects(store, "bucket/vectors")
    listed, shown = (json.loads(found.pop(REJECTS)) for found in (local, there))
    assert there == local and listed | {"file": ""} == shown | {"file": ""}
    assert shown["file"] == f"{scheme}://bucket/corpus.jsonl"
    assert holds_vectors(url) and not holds_vectors(f"{scheme}://bucket")
    ids, vectors = read_vectors(url).load()
    assert ids == [f"d{i}" for i in range(60)]
    assert np.array_equal(vectors, read_vectors(tmp_path / "local").load()[1])
    assert texts_of(read_vectors(url), f"{scheme}://bucket/corpus.jsonl") == TEXTS
    again = Stub()
    assert encode_corpus(again, corpus, url, **settings).kept == 9 and again.asked == []
    assert objects(store, "bucket/vectors")[MANIFEST] == local[MANIFEST]


FORMS = ["c.jsonl.gz", "c.parquet", "folder", "saved"]


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_file_is_read_from_a_store(form, store, tmp_path):
    rows = [{"id": f"r{i}", "text": text} for i, text in enumerate(TEXTS)]
    source = tmp_path / form
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if form == "saved":
        Dataset.from_list(rows).save_to_disk(source)
    elif form == "folder":
        source.mkdir()
        (source / "a.jsonl").write_text("".join(lines.splitlines(keepends=True)[:20]))
        pq.write_table(pa.Table.from_pylist(rows[20:]), source / "b.parquet")
    elif form == "c.parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    else:
        source.write_bytes(gzip.compress(lines.encode()))
    for path in source.rglob("*") if source.is_dir() else [source]:
        if path.is_file():
            put(f"bucket/{path.relative_to(tmp_path)}", path.read_bytes())
    encode_corpus(Stub(), source, tmp_path / "out", shard_rows=25)
    encode_corpus(Stub(), f"gs://bucket/{form}", "gs://bucket/out", shard_rows=25)
    assert objects(store, "bucket/out") == content(tmp_path / "out")


def test_large_objects_are_read_in_ranges(store, monkeypatch):
    monkeypatch.setattr(embrew.stores, "BLOCK", 1000)
    data = bytes(i * i % 251 for i in range(12_345))
    put("bucket/large", data)
    with place_of("gs://bucket/large").open("rb") as file:
        assert file.read(10) == data[:10] and file.read() == data[10:] and file.read() == b""
        file.seek(-7, 2)
        assert file.tell() == 12_338 and file.read(100) == data[-7:]
        file.seek(5_000)
        assert file.read(3_000) == data[5_000:8_000]


def test_a_store_that_does_not_answer_ends_the_run_and_the_same_call_resumes(store, corpus, tmp_path, monkeypatch):
    encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=7)
    with monkeypatch.context() as patched:
        real, files = FakeStore.put_file, []

        def put_file(self, file, path, **options):
            files.append(path)
            if len(files) > 6:
                raise ConnectionResetError("reset by peer")
            return real(self, file, path, **options)

        patched.setattr(FakeStore, "put_file", put_file)
        with pytest.raises(ConnectionError, match=r"gs://bucket/out/.*: no answer, .* \(reset by peer\); try again"):
            encode_corpus(Stub(), corpus, "gs://bucket/out", shard_rows=7)
    with pytest.raises(ValueError, match="is not complete"):
        read_vectors("gs://bucket/out")
    done = read_vectors("gs://bucket/out", partial=True)
    assert 0 < len(done) == sum(len(ids) for ids, _ in done) < 60
    stub = Stub()
    kept = encode_corpus(stub, corpus, "gs://bucket/out", shard_rows=7).kept
    assert kept == len(done.manifest.shards) and len(stub.asked) == 9 - kept
    assert objects(store, "bucket/out") == content(tmp_path / "out")


def test_another_job_and_objects_of_others_are_refused(store, corpus):
    encode_corpus(Stub(), corpus, "gs://bucket/out", shard_rows=25)
    before = objects(store, "bucket")
    with pytest.raises(FileExistsError, match=r"gs://bucket/out holds vectors made of another shard_rows"):
        encode_corpus(Stub(), corpus, "gs://bucket/out", shard_rows=20)
    put("bucket/mine/thesis.txt", b"precious")
    with pytest.raises(FileExistsError, match=r"gs://bucket/mine holds no .* left alone"):
        encode_corpus(Stub(), corpus, "gs://bucket/mine")
    with pytest.raises(ValueError, match="which cannot replace a folder in one step"):
        update_corpus(Stub(), corpus, "gs://bucket/out")
    assert objects(store, "bucket") == before | {"mine/thesis.txt": b"precious"}


def test_a_corpus_that_is_replaced_while_it_is_read(store, corpus):
    put("bucket/c.jsonl", corpus.read_bytes())

    class Replacing(Stub):
        def encode_document(self, inputs, **options):
            put("bucket/c.jsonl", corpus.read_bytes() + b'{"_id": "more", "text": "more"}\n')
            return super().encode_document(inputs, **options)

    with pytest.raises(ValueError, match=r"gs://bucket/c.jsonl.* changed"):
        encode_corpus(Replacing(), "gs://bucket/c.jsonl", "gs://bucket/out", shard_rows=25)


HOLDER = "process 77 on elsewhere since 2026-01-01 12:00:00 UTC"


def test_a_second_writer_is_refused_until_the_lock_is_removed(store, corpus):
    """The message says who holds it, since when, and with which command it is removed after a kill."""
    put(f"bucket/out/{LOCK}", HOLDER.encode())
    with pytest.raises(FileExistsError, match=f"{HOLDER} is encoding into gs://bucket/out; wait") as raised:
        encode_corpus(Stub(), corpus, "gs://bucket/out")
    assert objects(store, "bucket/out") == {LOCK: HOLDER.encode()}
    command = str(raised.value).partition('python -c "')[2].removesuffix('"')
    exec(command)
    assert encode_corpus(Stub(), corpus, "gs://bucket/out").rows == 60
    assert LOCK not in objects(store, "bucket/out"), "it is removed at the end"


@pytest.mark.parametrize("condition", [True, False])
def test_of_two_writers_at_once_one_goes_on(condition, store, monkeypatch):
    """The other's lock appears after it was asked for; also where a server ignores the condition of the request."""
    real = FakeStore.pipe_file

    def pipe_file(self, path, value, mode="overwrite", **options):
        real(self, path, HOLDER.encode())
        if condition:
            raise FileExistsError(path)

    monkeypatch.setattr(FakeStore, "pipe_file", pipe_file)
    with pytest.raises(FileExistsError, match=HOLDER), locked(place_of("gs://bucket/out"), "encoding into"):
        pytest.fail("there are two writers")


def test_a_lock_whose_answer_was_lost_is_ours(store, monkeypatch):
    """The store's client sends the request again, and is told that the object exists."""
    real = FakeStore.pipe_file

    def pipe_file(self, path, value, mode="overwrite", **options):
        real(self, path, value)
        real(self, path, value, mode=mode)

    monkeypatch.setattr(FakeStore, "pipe_file", pipe_file)
    with locked(place_of("gs://bucket/out"), "encoding into"):
        assert LOCK in objects(store, "bucket/out")
    assert objects(store, "bucket/out") == {}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/out/../../x", "without parts . and .."),
        ("hf://datasets/./x", "without parts . and .."),
        ("s3://KEY:SECRET@bucket/x", "without a user name or password"),
        ("ftp://host/x", "give a local path, file:///FOLDER, or s3://, gs:// or hf://"),
        ("s3:///", "with BUCKET/PREFIX"),
        ("file://host/x", "give a local path, file:///FOLDER"),
        ("gs://bucket/x::y", "'gs://bucket/x' is followed by '::'"),
        ("gs://bucket/x::s3://KEY:SECRET@b/y", "followed by '::'"),
        (Path("gs://bucket/x"), "'gs:/bucket/x' is a local path, .* give the URL as a string, gs://"),
        ("file:/data/x", "give the URL as a string, file://"),
    ],
)
def test_urls_that_cannot_be_used(url, message, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for places in ((url, tmp_path / "out"), (corpus, url)):
        with pytest.raises(ValueError, match=message) as raised:
            encode_corpus(Stub(), *places)
        assert "SECRET" not in str(raised.value) and "KEY" not in str(raised.value)
    assert [entry.name for entry in tmp_path.iterdir()] == [corpus.name], "nothing was written"


def test_an_object_is_safe_from_names_that_begin_with_its_own(store, corpus):
    """fsspec takes what follows `::` for another file system, and would open the object before it."""
    put("bucket/x", b"precious")
    put("bucket/in/a.jsonl", corpus.read_bytes())
    store.store["/bucket/in/a::b.jsonl"] = store.store.pop("/bucket/in/a.jsonl")
    for places in ((corpus, "gs://bucket/x::y"), ("gs://bucket/in", "gs://bucket/out")):
        with pytest.raises(ValueError, match="is followed by '::'"):
            encode_corpus(Stub(), *places)
    assert set(objects(store, "bucket")) == {"x", "in/a::b.jsonl"} and objects(store, "bucket")["x"] == b"precious"


def test_a_missing_package_is_named_with_its_extra(monkeypatch, corpus, tmp_path):
    for scheme, package in (("s3", "s3fs"), ("gs", "gcsfs")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(_registry, scheme, raising=False)
        with pytest.raises(ImportError, match=rf'pip install "embrew\[{scheme}\]"') as raised:
            encode_corpus(Stub(), f"{scheme}://bucket/c.jsonl", tmp_path / "out")
        assert raised.value.name is None, "the command line shows it as one line"


def test_not_found_and_no_permission(store, corpus, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"no file or folder 'gs://bucket/c.jsonl'"):
        encode_corpus(Stub(), "gs://bucket/c.jsonl", "gs://bucket/out")

    def refuse(self, *arguments, **options):
        raise PermissionError("Access Denied for https://x/y?X-Amz-Signature=abcdef&Token=t")

    monkeypatch.setattr(FakeStore, "put_file", refuse)
    with pytest.raises(PermissionError, match=r"gs://bucket/out/.*: the store refuses access") as raised:
        encode_corpus(Stub(), corpus, "gs://bucket/out")
    assert "abcdef" not in str(raised.value) and "'bucket'" in str(raised.value)
    assert raised.value.__cause__ is None and raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, PermissionError), (403, PermissionError), (404, FileNotFoundError), (503, ConnectionError)],
)
def test_errors_by_their_status(status, kind):
    error = OSError("from the Hub")
    error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    assert type(explain_error(error, "hf://datasets/a/b")) is kind


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('Could not connect to "http://user:hunter2@minio:9000/b/k"', 'Could not connect to "http://…@minio:9000/b/k"'),
        ("for url https://user:hunter2@host/x?sig=hunter2", "for url https://…@host/x?…"),
        ("at http://user:hun@ter/hunter2@host/x", "at http://…@host/x"),
        ("at http://hunter2@host", "at http://…@host"),
        ("at http://minio:9000/b/name@v1", "at http://minio:9000/b/name@v1"),
        ("Bearer hunter2 is expired", "Bearer … is expired"),
        ("Invalid header value b'Bearer hunter2\\n'", "Invalid header value b'Bearer …\\n'"),
        ("{'Authorization': 'Basic hunter2=='}", "{'Authorization': '…'}"),
        ("the token hf_hunter2 is not valid", "the token hf_… is not valid"),
        ("not enough of the bearers", "not enough of the bearers"),
        (
            "The authorization header is malformed; the region 'a' is wrong",
            "header is malformed; the region 'a' is wrong",
        ),
        ("hf://datasets/me/texts@main/c.jsonl", "hf://datasets/me/texts@main/c.jsonl"),
    ],
)
def test_messages_hold_no_credentials(said, shown):
    for error in (
        ConnectionError(said),
        OSError(said),
        PermissionError(said),
        FileNotFoundError(said),
        ValueError(said),
    ):
        message = str(explain_error(error, "s3://b/k"))
        assert shown in message and "hunter2" not in message


def test_an_object_of_the_hub_that_is_replaced_is_seen(monkeypatch):
    """The Hub's file system keeps listings, whatever it is asked for."""
    from huggingface_hub import HfFileSystem
    from huggingface_hub.hf_api import RepoFile

    files = {"c.jsonl": 10}

    def tree(*given, **options):
        return iter([RepoFile(path=name, size=size, oid=f"{size}", type="file") for name, size in files.items()])

    HfFileSystem.clear_instance_cache()
    store = HfFileSystem(use_listings_cache=False)
    monkeypatch.setattr(store, "_repo_and_revision_exist", lambda *given, **options: (True, None))
    monkeypatch.setattr(store._api, "list_repo_tree", tree)
    folder = place_of("hf://datasets/me/texts")
    assert isinstance(folder, StorePath)
    assert (folder / "c.jsonl").stat().st_size == 10 and list(folder.iterdir()) == [folder / "c.jsonl"]
    files.update({"c.jsonl": 20, "d.jsonl": 5})
    assert (folder / "c.jsonl").stat().st_size == 20 and (folder / "d.jsonl").exists()
    files["e.jsonl"] = 1
    assert len(list(folder.iterdir())) == 3
    HfFileSystem.clear_instance_cache()


def test_places():
    assert place_of("s3://b//c/") == StorePath("s3://b/c") and place_of("s3://b/c").name == "c"
    assert str(place_of("s3://b/c") / "d") == "s3://b/c/d"
    assert place_of("a/b") == Path("a/b") and place_of("file:///a") == Path("/a")
