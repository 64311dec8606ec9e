"""Corpora and vectors in moto's S3 server: a server that is gone, processes that are killed; the bytes of a folder."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from typer.testing import CliRunner

import embrew.opening
from embrew.cli import app
from embrew.corpus import encode_corpus, read_vectors
from embrew.corpus.job import MANIFEST
from embrew.stores import LOCK
from tests.corpus import s3_server
from tests.corpus.s3_server import KEY, SECRET, environment, objects, store, use
from tests.corpus.stub import Stub
from tests.corpus.test_resume import ROOT, content

pytestmark = pytest.mark.slow
SETTINGS = {"shard_rows": 10, "precision": "int8", "on_bad_rows": "skip"}


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with s3_server.s3_server() as port:
        yield port


@pytest.fixture
def port(server, monkeypatch) -> int:
    s3_server.empty(server)
    use(server, monkeypatch)
    return server


def said(url: str, *arguments: object):
    return CliRunner().invoke(app, ["encode", "any", *map(str, arguments), url])


def test_encode_and_search_in_a_bucket(port, corpus, tmp_path, monkeypatch, caplog):
    """The same bytes as in a folder, resumed, refused to others, searched; errors name the URL, never the key."""
    caplog.set_level(logging.DEBUG, logger="embrew")
    stub = Stub()
    monkeypatch.setattr(embrew.opening, "open_model", lambda name, **_: stub)
    store(port).put_file(str(corpus), "bucket/corpus.jsonl")
    encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=25)
    first = said("s3://bucket/out", "s3://bucket/corpus.jsonl", "--shard-rows", 25)
    assert first.exit_code == 0, first.stderr
    assert "s3://bucket/out: 60 vectors of 16 dimensions in 3 shards" in first.stdout
    assert objects(port, "bucket/out") == content(tmp_path / "out")
    again = said("s3://bucket/out", corpus, "--shard-rows", 25)
    assert "3 of them from an earlier run" in again.stdout
    other = said("s3://bucket/out", corpus, "--shard-rows", 20)
    assert other.exit_code == 1 and "made of another shard_rows" in other.stderr
    search = CliRunner().invoke(
        app,
        ["search", "any", "-i", "s3://bucket/out", "--corpus", "s3://bucket/corpus.jsonl", "--json", "-k", "1", "what"],
    )
    assert search.exit_code == 0, search.stderr
    (hit,) = json.loads(search.stdout)["questions"][0]["hits"]
    ids, vectors = read_vectors(tmp_path / "out").load()
    assert hit["id"] == ids[int((vectors @ stub.encode(["what"])[0] / np.linalg.norm(vectors, axis=1)).argmax())]
    built = CliRunner().invoke(app, ["search", "any", "-i", "s3://bucket/index", "--build", str(corpus)])
    assert built.exit_code == 1 and "an index is built in a folder of this machine" in built.stderr
    updated = said("s3://bucket/out", corpus, "--shard-rows", 25, "--update")
    assert updated.exit_code == 1 and "cannot replace a folder in one step" in updated.stderr
    wrong = said("s3://other/out", corpus)
    assert wrong.exit_code == 1 and "s3://other/out" in wrong.stderr and "bucket does not exist" in wrong.stderr
    missing = said("s3://bucket/new", "s3://bucket/missing.jsonl")
    assert missing.exit_code == 1 and "no file or folder 's3://bucket/missing.jsonl'" in missing.stderr
    with pytest.raises(ValueError, match="has changed since it was written"):
        store(port).pipe_file("bucket/out/part-00000.parquet", b"another object")
        read_vectors("s3://bucket/out").load()
    shown = [one.stdout + one.stderr for one in (first, again, other, search, built, updated, wrong, missing)]
    for text in (*shown, caplog.text, objects(port, "bucket/out")[MANIFEST].decode()):
        assert KEY not in text and SECRET not in text


def test_without_credentials(port, corpus, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(
        PermissionError, match=r"s3://bucket/out.*: the store refuses access, or there are no credentials"
    ):
        encode_corpus(Stub(), corpus, "s3://bucket/out")


def test_a_server_that_is_gone_ends_the_run_in_bounded_time(port, corpus, monkeypatch):
    stub = Stub()
    real = stub.encode

    def encode(*texts, **options):
        if len(stub.asked) == 3:
            use(1, monkeypatch)  # nothing listens there
        return real(*texts, **options)

    monkeypatch.setattr(stub, "encode", encode)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"s3://bucket/out/.*: no answer, or an error of the store"):
        encode_corpus(stub, corpus, "s3://bucket/out", **SETTINGS)
    assert time.monotonic() - began < 300
    use(port, monkeypatch)
    store(port).rm_file(f"bucket/out/{LOCK}")
    assert encode_corpus(Stub(), corpus, "s3://bucket/out", **SETTINGS).kept == 3


def test_killed_again_and_again(port, tmp_path):
    """No half shard is ever listed, and the objects of the last run are those of one that nothing stopped."""
    corpus = tmp_path / "long.jsonl"
    rows = [{"id": i, "text": f"text {i} " + "word " * (i % 17)} for i in range(200)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encode_corpus(Stub(), corpus, tmp_path / "whole", **SETTINGS)
    whole = content(tmp_path / "whole")
    store(port).put_file(str(corpus), "bucket/long.jsonl")
    generator, kills = random.Random(0), 0
    command = [sys.executable, "-m", "tests.corpus.stub", "s3://bucket/long.jsonl", "s3://bucket/out", "0.02"]
    variables = {**os.environ, **environment(port), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    while True:
        before, more = len(store(port).find("bucket/out")), generator.randint(0, 10)
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        while process.poll() is None and kills < 5:
            if len(store(port).find("bucket/out")) > before + more:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.02)
        printed, _ = process.communicate(timeout=300)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, printed.decode()[-2000:]
        kills += 1
        with suppress(FileNotFoundError):
            store(port).rm_file(f"bucket/out/{LOCK}")  # as the message of the next run says
        found = objects(port, "bucket/out")
        for entry in json.loads(found.get(MANIFEST, b'{"shards": []}'))["shards"]:
            assert found[entry["file"]] == whole[entry["file"]]
    assert kills >= 3 and objects(port, "bucket/out") == whole
