"""Killed at any moment and given again: every row once, the same bytes as in one go; other jobs are refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from embrew.corpus import encode_corpus, read_vectors
from embrew.corpus.job import MANIFEST, REJECTS
from tests import fresh
from tests.corpus.conftest import edit
from tests.corpus.stub import Stub

ROOT = Path(__file__).parents[2]


@pytest.fixture
def long_corpus(tmp_path) -> Path:
    """500 rows, so 50 shards; two lines are no JSON."""
    lines = [json.dumps({"id": i, "text": f"text {i} " + "word " * (i % 17)}) for i in range(500)]
    lines[123] = lines[321] = "{"
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(lines))
    return path


def start(corpus: Path, output: Path, wait: float) -> subprocess.Popen:
    """One run in a new interpreter."""
    command = [sys.executable, "-m", "tests.corpus.stub", str(corpus), str(output), str(wait)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def whole(long_corpus, tmp_path) -> dict[str, bytes]:
    """One run that nothing stopped."""
    settings = {"shard_rows": 10, "precision": "int8", "on_bad_rows": "skip"}
    summary = encode_corpus(Stub(), long_corpus, tmp_path / "whole", **settings)
    assert (summary.rows, summary.shards, summary.rejected) == (498, 50, 2)
    return content(tmp_path / "whole")


def test_killed_once(long_corpus, whole, tmp_path):
    output = tmp_path / "halves"
    process = fresh.Fresh([sys.executable, "-m", "tests.corpus.stub", str(long_corpus), str(output), "0.02"], cwd=ROOT)
    deadline = time.monotonic() + 240
    while not (output / "part-00012.parquet").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 12 <= len(list(output.glob("part-*"))) < 50 and not (output / REJECTS).exists()
    with pytest.raises(ValueError, match="is not complete"):
        read_vectors(output)
    done = json.loads((output / MANIFEST).read_text())["rows"]
    assert sum(len(ids) for ids, _ in read_vectors(output, partial=True)) == done
    settings = {"shard_rows": 10, "precision": "int8", "on_bad_rows": "skip"}
    stub = Stub()
    summary = encode_corpus(stub, long_corpus, output, **settings)
    assert len(stub.asked) == 50 - summary.kept and 12 <= summary.kept < 50
    assert content(output) == whole, "shards, rejects and manifest, and nothing else"


CHANGES = {
    "prompt_name": ({"prompt_name": "query"}, Stub()),
    "prompt": ({}, Stub(prompts={"document": "passage: "})),
    "model_hash": ({}, Stub(name="another")),
    "precision": ({"precision": "int8"}, Stub()),
    "truncate_dim": ({"truncate_dim": 8}, Stub()),
    "shard_rows": ({"shard_rows": 20}, Stub()),
    "id_column": ({"id_column": "_id"}, Stub()),
    "text_column": ({"text_column": "text"}, Stub()),
}


@pytest.mark.parametrize("key", CHANGES)
def test_another_job_is_refused_by_name(key, corpus, tmp_path):
    encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=25)
    before = content(tmp_path / "out")
    settings, stub = CHANGES[key]
    with pytest.raises(FileExistsError, match=rf"made of another .*\b{key}\b"):
        encode_corpus(stub, corpus, tmp_path / "out", **{"shard_rows": 25, **settings})
    assert content(tmp_path / "out") == before and stub.asked == []


def test_a_corpus_that_changed_is_refused(corpus, tmp_path):
    """By its ends at once; in the middle by the shard that was made of it; at the end where rows were added."""
    encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=25)
    lines = corpus.read_text().splitlines(keepends=True)
    corpus.write_text("".join(lines[:-1]))
    with pytest.raises(FileExistsError, match="made of another input"):
        encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=25)
    big = tmp_path / "big.txt"
    texts = [f"text {i:05d} " + "x" * 200 for i in range(1000)]
    big.write_text("\n".join(texts))
    encode_corpus(Stub(), big, tmp_path / "big", shard_rows=100)
    texts[450] = texts[450].replace("x", "y")
    big.write_text("\n".join(texts))
    with pytest.raises(ValueError, match=r"its rows 401 to 500 are not those that .*part-00004.parquet was made of"):
        encode_corpus(Stub(), big, tmp_path / "big", shard_rows=100)


def test_a_full_disk_leaves_what_was_finished(corpus, tmp_path, monkeypatch):
    encode_corpus(Stub(), corpus, tmp_path / "whole", shard_rows=10)
    write = pq.write_table

    def fails(table, where, **options):
        if list((tmp_path / "out").glob("part-00002*")):
            Path(where).write_bytes(b"half a file")
            raise OSError(28, "No space left on device", str(where))
        write(table, where, **options)

    monkeypatch.setattr(pq, "write_table", fails)
    with pytest.raises(OSError, match="No space left on device"):
        encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=10)
    finished = {name for i in range(3) for name in (f"part-0000{i}.parquet", f"__embrew__/part-0000{i}.texts")}
    assert content(tmp_path / "out").keys() == {MANIFEST, *finished}
    ids = [i for some, _ in read_vectors(tmp_path / "out", partial=True) for i in some]
    assert ids == [f"d{i}" for i in range(30)]
    monkeypatch.setattr(pq, "write_table", write)
    assert encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=10).kept == 3
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_one_process_at_a_time_and_no_folder_of_others(corpus, tmp_path):
    from embrew.files.writing import claimed

    with (
        claimed(tmp_path / "out", "encoding into"),
        pytest.raises(FileExistsError, match="another process is encoding into"),
    ):
        encode_corpus(Stub(), corpus, tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="not written by embrew; it is left alone"):
        encode_corpus(Stub(), corpus, tmp_path / "mine")
    assert content(tmp_path / "mine") == {"thesis.txt": b"precious"}


def test_batch_size_may_change_on_the_way(corpus, tmp_path, caplog):
    """It moves the last bits only; other versions of the libraries may move more, and are said."""
    encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=25, batch_tokens=10)
    edit(tmp_path / "out", lambda values: values["run"]["versions"].update(torch="0.1"))
    assert encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=25, batch_tokens=20).kept == 3
    assert "begun with other versions of the libraries" in caplog.text


def test_a_run_killed_before_its_first_shard_can_be_given_again(corpus, tmp_path):
    out = tmp_path / "out"
    (out / "__embrew__").mkdir(parents=True)
    (out / "__embrew__" / ".vectors.json.abcdefgh.partial").write_bytes(b"half a manifest")
    assert encode_corpus(Stub(), corpus, out).rows == 60
    assert content(out).keys() == {MANIFEST, "part-00000.parquet", "__embrew__/part-00000.texts"}
    assert not (out / REJECTS).exists()
    shutil.rmtree(out / "__embrew__")
    with pytest.raises(FileExistsError, match="not written by embrew; it is left alone"):
        encode_corpus(Stub(), corpus, out)
