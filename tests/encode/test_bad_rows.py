"""Every kind of row that cannot be encoded: named where it stops the run, written down where it is left out."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embrew.encode import encode_corpus, read_vectors
from embrew.encode.layout import REJECTS
from tests.encode.stub import Stub

GOOD = b'{"text": "good"}\n'


def parquet(table: pa.Table, cut: int = 0) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=1000)
    data = sink.getvalue().to_pybytes()
    return data[: len(data) - cut]


NOT_UTF8 = pa.table({"text": pa.Array.from_buffers(  # a string column with a byte that is none
    pa.string(), 3, [None, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffc")]
)})  # fmt: skip
ROWS = b"".join(b'{"text": "row %d of many"}\n' % i for i in range(3000))

# name, content, line or row, reason, rows that are left
KINDS = [
    ("json", "a.jsonl", GOOD + b'{"text": \n' + GOOD, 2, "not valid JSON", 2),
    ("not an object", "a.jsonl", GOOD + b"[1]\n" + GOOD, 2, "holds a list, not an object", 2),
    ("utf-8", "a.jsonl", GOOD + b'{"text": "\xff"}\n' + GOOD, 2, "not valid UTF-8", 2),
    ("utf-8 in text", "a.txt", b"good\n\xff\ngood", 2, "not valid UTF-8", 2),
    ("surrogate", "a.jsonl", b'{"text": "\\ud800"}\n' + GOOD, 1, "holds a lone surrogate", 1),
    ("null", "a.jsonl", b'{"text": null}\n' + GOOD, 1, "text is null; a row needs a text", 1),
    ("missing", "a.jsonl", b'{"body": "x"}\n' + GOOD, 1, "text is missing (there are body)", 1),
    ("type", "a.jsonl", b'{"text": 3}\n' + GOOD, 1, "text is a int; texts are strings", 1),
    ("title", "a.jsonl", b'{"text": "x", "title": [1]}\n' + GOOD, 1, "title is a list; texts are strings", 1),
    ("id", "a.jsonl", b'{"text": "x", "id": 1.5}\n' + GOOD, 1, "id is a float; ids are texts or integers", 1),
    ("10 MB", "a.jsonl", b'{"text": "' + b"x" * 10_000_000 + b'"}\n' + GOOD, 1, "longer than 8,000,000 bytes", 1),
    ("10 MB of text", "a.txt", b"good\n" + b"x " * 5_000_000, 2, "longer than 8,000,000 bytes", 1),
    ("long", "a.jsonl", b'{"text": "' + b"x" * 1_000_001 + b'"}\n' + GOOD, 1, "1,000,001 characters, more than", 1),
    ("gzip", "a.jsonl.gz", gzip.compress(ROWS)[:-2000], None, "broken gzip file", None),
    ("not gzip", "a.jsonl.gz", b"plain", 0, "broken gzip file", 0),
    ("parquet", "a.parquet", parquet(pa.table({"text": ["a"] * 50}), cut=20), 0, "broken Parquet file", 0),
    ("parquet utf-8", "a.parquet", parquet(NOT_UTF8), 2, "not valid UTF-8", 2),
    ("parquet null", "a.parquet", parquet(pa.table({"text": ["a", None]})), 2, "text is null", 1),
    ("no rows", "a.jsonl", b"\n \n", 0, "holds no rows; leave the file out", 0),
]


Kind = tuple[str, str, bytes, int | None, str, int | None]


@pytest.mark.parametrize("kind", KINDS, ids=[kind[0] for kind in KINDS])
def test_strict_names_it_and_skip_writes_it_down(tmp_path: Path, kind: Kind):
    _, name, content, number, reason, left = kind
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / name).write_bytes(content)
    (folder / "z.txt").write_text("always good\n")
    with pytest.raises(ValueError, match=rf"{re.escape(str(folder / name))}.*{number or ''}.*{re.escape(reason)}"):
        encode_corpus(Stub(), folder, tmp_path / "strict")
    assert not list((tmp_path / "strict").glob("part-*"))

    summary = encode_corpus(Stub(), folder, tmp_path / "skip", on_bad_rows="skip")
    lines = [json.loads(line) for line in (tmp_path / "skip" / REJECTS).read_text().splitlines()]
    assert summary.rejected == len(lines) == 1
    assert lines[0]["file"] == str(folder / name) and reason in lines[0]["reason"]
    if number is None:
        assert 0 < lines[0]["line"] == summary.rows - 1 < 3000, "what was read before the break is kept"
    else:
        assert (lines[0]["line"], summary.rows) == (number, left + 1)
    ids, _ = read_vectors(tmp_path / "skip").load()
    assert ids[-1] == "z.txt:1"


def test_how_many_kinds() -> None:
    assert len(KINDS) == 19


def test_long_lines_are_not_held_in_memory(tmp_path: Path):
    import tracemalloc

    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "' + b"x" * 60_000_000 + b'"}\n' + GOOD)
    tracemalloc.start()
    encode_corpus(Stub(), path, tmp_path / "out", on_bad_rows="skip")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30_000_000


STOPS = [((5, 250), None), ((5, 6), 1), ((150, 210, 240), 4), ((299,), None)]  # and how many shards are finished then


@pytest.mark.parametrize(("bad_at", "finished"), STOPS)
def test_too_many_bad_rows_stop_the_run(tmp_path: Path, bad_at: tuple[int, ...], finished: int | None):
    """More than 1 % of at least 100 rows: 2 of the first 100, 3 of 241; not 1 of 300, nor 1 of 100 and 2 of 251."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b"{\n" if i in bad_at else GOOD for i in range(300)))
    if finished:
        with pytest.raises(ValueError, match=rf"{len(bad_at)} of the first \d+ rows cannot be encoded"):
            encode_corpus(Stub(), path, tmp_path / "out", on_bad_rows="skip", shard_rows=50)
        written = (tmp_path / "out" / REJECTS).read_text().splitlines()
        assert [json.loads(line)["line"] for line in written] == [i + 1 for i in bad_at]
        summary = encode_corpus(Stub(), path, tmp_path / "out", on_bad_rows="skip", shard_rows=50, max_reject_rate=0.05)
        assert summary.kept == finished
    else:
        summary = encode_corpus(Stub(), path, tmp_path / "out", on_bad_rows="skip", shard_rows=50)
    assert (summary.rows, summary.rejected) == (300 - len(bad_at), len(bad_at))


def test_strict_then_skip_goes_on(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD * 25 + b"{\n" + GOOD * 10)
    with pytest.raises(ValueError, match="line 26: not valid JSON"):
        encode_corpus(Stub(), path, tmp_path / "out", shard_rows=10)
    summary = encode_corpus(Stub(), path, tmp_path / "out", shard_rows=10, on_bad_rows="skip")
    assert (summary.kept, summary.rows, summary.rejected) == (2, 35, 1)


def test_an_id_that_is_asked_for_must_be_there(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x", "key": "a"}\n{"text": "y"}\n')
    with pytest.raises(ValueError, match="line 2: key is missing"):
        encode_corpus(Stub(), tmp_path / "a.jsonl", tmp_path / "out", id_column="key")
