"""Every kind of row that cannot be encoded: named where it stops the run, written down where it is left out."""

from __future__ import annotations

import gzip
import json
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from embrew.corpus import encode_corpus, read_vectors
from embrew.corpus.job import REJECTS
from tests.corpus.stub import Stub

GOOD = b'{"text": "good"}\n'


def parquet(table: pa.Table, cut: int = 0) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=1000)
    data = sink.getvalue().to_pybytes()
    return data[: len(data) - cut]


ROWS = b"".join(b'{"text": "row %d of many"}\n' % i for i in range(3000))

# name, content, line or row, reason, rows that are left
KINDS = [
    ("json", "a.jsonl", GOOD + b'{"text": \n' + GOOD, 2, "not valid JSON", 2),
    ("not an object", "a.jsonl", GOOD + b"[1]\n" + GOOD, 2, "holds a list, not an object", 2),
    ("utf-8", "a.jsonl", GOOD + b'{"text": "\xff"}\n' + GOOD, 2, "not valid UTF-8", 2),
    ("utf-8 in text", "a.txt", b"good\n\xff\ngood", 2, "not valid UTF-8", 2),
    ("surrogate", "a.jsonl", b'{"text": "\\ud800"}\n' + GOOD, 1, "holds a lone surrogate", 1),
    ("null", "a.jsonl", b'{"text": null}\n' + GOOD, 1, "text is null; every row needs a text", 1),
    ("missing", "a.jsonl", b'{"body": "x"}\n' + GOOD, 1, "text is missing (there are body)", 1),
    ("type", "a.jsonl", b'{"text": 3}\n' + GOOD, 1, "text is a int; every row needs a text (a string)", 1),
    ("title", "a.jsonl", b'{"text": "x", "title": [1]}\n' + GOOD, 1, "title is a list; titles are strings", 1),
    (
        "id",
        "a.jsonl",
        b'{"text": "x", "id": 1.5}\n' + GOOD,
        1,
        "id is a float; give every row an id (a text or an integer)",
        1,
    ),
    ("id null", "a.jsonl", b'{"text": "x", "_id": null}\n' + GOOD, 1, "_id is null; give every row an id", 1),
    ("10 MB", "a.jsonl", b'{"text": "' + b"x" * 10_000_000 + b'"}\n' + GOOD, 1, "longer than 8,000,000 bytes", 1),
    ("10 MB of text", "a.txt", b"good\n" + b"x " * 5_000_000, 2, "longer than 8,000,000 bytes", 1),
    ("long", "a.jsonl", b'{"text": "' + b"x" * 1_000_001 + b'"}\n' + GOOD, 1, "1,000,001 characters, more than", 1),
    ("parquet null", "a.parquet", parquet(pa.table({"text": ["a", None]})), 2, "text is null", 1),
    ("no rows", "a.jsonl", b"\n \n", 0, "holds no rows; leave the file out", 0),
]


@pytest.mark.parametrize("kind", KINDS, ids=[kind[0] for kind in KINDS])
def test_strict_names_it_and_skip_writes_it_down(tmp_path, kind):
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
    assert (lines[0]["line"], summary.rows) == (number, left + 1)
    ids, _ = read_vectors(tmp_path / "skip").load()
    assert ids[-1] == "z.txt:1"


MEMBER = gzip.compress(ROWS)
CSV = b"text\n" + b"good\n" * 10
# name, content, reason, least rows before it
BROKEN = [
    ("a.jsonl.gz", MEMBER[:-2000], "broken gzip file", 1),
    ("a.parquet", parquet(pa.table({"text": ["a"] * 50}), cut=20), "broken Parquet file", 0),
    ("b.parquet", parquet(pa.table({"body": ["a"] * 50})), "text is missing", 0),
    ("a.jsonl", ROWS[:-5], "may be truncated", 2999),
    ("a.csv", CSV + b'"x" y\n' + CSV, "not valid CSV", 10),
]


@pytest.mark.parametrize("broken", BROKEN, ids=[broken[0] for broken in BROKEN])
def test_a_broken_file_stops_the_run_in_both_modes(tmp_path, broken):
    """What follows the break cannot be counted as one bad row; what was finished stays, and a whole file resumes."""
    name, content, reason, least = broken
    file, out = tmp_path / name, tmp_path / "out"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{re.escape(str(file))}.*{re.escape(reason)}"):
        encode_corpus(Stub(), file, tmp_path / "strict", shard_rows=500, show_progress_bar=True)
    with pytest.raises(ValueError, match="resumes once the file is repaired") as raised:
        encode_corpus(Stub(), file, out, shard_rows=500, on_bad_rows="skip")
    (read,) = re.findall(r"([\d,]+) rows were read until there", str(raised.value))
    rows = int(read.replace(",", ""))
    assert rows >= least and len(list(out.glob("part-*"))) == rows // 500
    (listed,) = [json.loads(line) for line in (out / REJECTS).read_text().splitlines()]
    assert listed["file"] == str(file) and reason in listed["reason"]
    if name.startswith("a.jsonl"):
        file.write_bytes(MEMBER if name.endswith("gz") else ROWS)
        summary = encode_corpus(Stub(), file, out, shard_rows=500, on_bad_rows="skip")
        assert (summary.kept, summary.rows, summary.rejected) == (rows // 500, 3000, 0) and not (out / REJECTS).exists()


def test_rows_of_the_splits_of_a_saved_data_set_have_numbers_of_their_own(tmp_path):
    """Files of splits have the same names."""
    splits = {name: Dataset.from_dict({"text": [f"{name} {i}" for i in range(3)]}) for name in ("train", "test")}
    DatasetDict(splits).save_to_disk(tmp_path / "saved")
    summary = encode_corpus(Stub(), tmp_path / "saved", tmp_path / "out")
    assert (summary.rows, summary.rejected) == (6, 0)
    ids = read_vectors(tmp_path / "out").load()[0]
    assert len({*ids}) == 6 and {name.split("/")[0] for name in ids} == {"train", "test"}


def test_files_of_a_folder_that_are_not_read_are_named(tmp_path, caplog):
    folder = tmp_path / "corpus of files"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    encode_corpus(Stub(), folder, tmp_path / "alone")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    for name in ("b.csv", "D.JSONL", "sub/c.jsonl", "notes.md"):
        (folder / name).write_text("text\nb\n")
    encode_corpus(Stub(), folder, tmp_path / "out")
    (said,) = {record.message for record in caplog.records if record.levelname == "WARNING"}
    assert said.startswith(f"{folder}: not read: D.JSONL, b.csv, sub/c.jsonl; of a folder")


def test_what_is_no_regular_file_is_refused(tmp_path):
    """A pipe can be read once only, and a corpus is read again to resume; a dead link would be left out in silence."""
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match=r"a.jsonl is a named pipe or a device; data are read from regular files"):
        encode_corpus(Stub(), tmp_path / "a.jsonl", tmp_path / "out")
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("good\n")
    (folder / "b.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(ValueError, match=r"b.txt is a link to .*gone.txt, which does not exist"):
        encode_corpus(Stub(), folder, tmp_path / "out")
    (folder / "b.txt").unlink()
    os.mkfifo(folder / "b.txt")
    with pytest.raises(ValueError, match=r"b.txt is a named pipe"):
        encode_corpus(Stub(), folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_after_it_was_read_stops_the_run(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"a {i}\n" for i in range(20)))
    (folder / "b.txt").write_text("".join(f"b {i}\n" for i in range(20)))

    class Meanwhile(Stub):
        def encode_document(self, inputs, **options):
            if len(self.asked) == 3:
                (folder / "a.txt").write_text("something else\n")
            return super().encode_document(inputs, **options)

    with pytest.raises(ValueError, match=r"corpus changed while it was read; finished shards are kept"):
        encode_corpus(Meanwhile(), folder, tmp_path / "out", shard_rows=10)


def test_long_lines_are_not_held_in_memory(tmp_path):
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
def test_too_many_bad_rows_stop_the_run(tmp_path, bad_at, finished):
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


def test_an_id_that_is_asked_for_must_be_there(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x", "key": "a"}\n{"text": "y"}\n')
    with pytest.raises(ValueError, match="line 2: key is missing"):
        encode_corpus(Stub(), tmp_path / "a.jsonl", tmp_path / "out", id_column="key")
