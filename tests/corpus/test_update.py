"""A newer version of a corpus: known vectors are kept, the model sees the rest; the folder is that of a fresh run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embrew.corpus import encode_corpus, read_vectors, texts_of, update_corpus
from embrew.search import Changes
from tests.corpus.stub import Stub
from tests.corpus.test_resume import content

Rows = list[tuple[str, str]]
OLD: Rows = [(f"d{i}", f"text {i}") for i in range(60)]


def write(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in rows))
    return path


def newer() -> Rows:
    """Two rows before the others, three changed, four dropped, one under another id, five more at the end."""
    rows = [("n0", "new 0"), ("n1", "new 1"), *OLD]
    rows = [(name, f"{text} changed") if name in ("d7", "d30", "d59") else (name, text) for name, text in rows]
    rows = [row for row in rows if row[0] not in ("d3", "d20", "d21", "d50")]
    rows = [("renamed", text) if name == "d10" else (name, text) for name, text in rows]
    return [*rows, *((f"m{i}", f"more {i}") for i in range(4)), ("m4", "more 0")]


CHANGES = Changes(kept=52, changed=3, new=8, dropped=5, encoded=9)


@pytest.mark.parametrize("precision", ["float32", "binary"])
def test_the_folder_is_that_of_a_fresh_run(precision, tmp_path):
    """To the byte, manifest and all, with an encoder whose vectors do not depend on other texts."""
    settings = {"shard_rows": 7, "precision": precision}
    encode_corpus(Stub(), write(tmp_path / "c.jsonl", OLD), tmp_path / "out", **settings)
    corpus, stub = write(tmp_path / "c.jsonl", newer()), Stub()
    summary = update_corpus(stub, corpus, tmp_path / "out", **settings)
    assert summary.changes == CHANGES
    assert sum(asked["rows"] for asked in stub.asked) == 9, "a text that is there twice is encoded once"
    encode_corpus(Stub(), corpus, tmp_path / "fresh", **settings)
    assert content(tmp_path / "out") == content(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "fresh", "out"]
    assert texts_of(read_vectors(tmp_path / "out"), corpus) == [text for _, text in newer()], "for embrew search"
    again = Stub()
    same = update_corpus(again, corpus, tmp_path / "out", **settings)
    assert same.changes == Changes(kept=63, changed=0, new=0, dropped=0) and again.asked == []
    assert same.kept == same.shards == 9 and content(tmp_path / "out") == content(tmp_path / "fresh")
    assert encode_corpus(again, corpus, tmp_path / "out", **settings).kept == 9, "and it is complete"


def test_int8_ranges_stay_those_of_the_folder(tmp_path):
    encode_corpus(Stub(), write(tmp_path / "c.jsonl", OLD), tmp_path / "out", shard_rows=50, precision="int8")
    before = read_vectors(tmp_path / "out")
    codes = {name: row for ids, rows in before for name, row in zip(ids, rows, strict=True)}
    corpus = write(tmp_path / "c.jsonl", newer())
    update_corpus(Stub(), corpus, tmp_path / "out", shard_rows=50, precision="int8")
    after = read_vectors(tmp_path / "out")
    assert after.ranges == before.ranges and after.ranges is not None
    for ids, rows in after:
        for name, row in zip(ids, rows, strict=True):
            if name in codes and name not in ("d7", "d30", "d59"):
                assert np.array_equal(row, codes[name])
    ids, vectors = after.load()
    assert ids == [name for name, _ in newer()]
    exact = Stub().encode([text for _, text in newer()])
    inside = np.abs(vectors - exact) <= np.array(after.ranges.step) / 2 + 1e-6
    assert inside.mean() > 0.97, "but for values beyond the ranges"


def test_vectors_of_a_model_are_those_of_a_fresh_run(make_encoder, tmp_path):
    """Kept ones to the bit those of the older folder, all of them up to rounding those of a fresh run."""
    encoder = make_encoder(max_length=64)
    encode_corpus(encoder, write(tmp_path / "c.jsonl", OLD), tmp_path / "out", shard_rows=25)
    before = dict(zip(*read_vectors(tmp_path / "out").load(), strict=True))
    corpus = write(tmp_path / "c.jsonl", newer())
    update_corpus(encoder, corpus, tmp_path / "out", shard_rows=25)
    encode_corpus(encoder, corpus, tmp_path / "fresh", shard_rows=25)
    ids, vectors = read_vectors(tmp_path / "out").load()
    fresh_ids, fresh = read_vectors(tmp_path / "fresh").load()
    assert ids == fresh_ids and np.abs(vectors - fresh).max() <= 2e-6
    kept = [i for i, name in enumerate(ids) if name in before and name not in ("d7", "d30", "d59")]
    assert len(kept) == 52 and all(np.array_equal(vectors[i], before[ids[i]]) for i in kept)


def test_rows_at_the_end_leave_whole_shards_as_they_are(tmp_path):
    encode_corpus(Stub(), write(tmp_path / "c.jsonl", OLD), tmp_path / "out", shard_rows=10)
    inodes = [(tmp_path / "out" / f"part-0000{i}.parquet").stat().st_ino for i in range(6)]
    corpus = write(tmp_path / "c.jsonl", [*OLD, ("more", "text")])
    summary = update_corpus(Stub(), corpus, tmp_path / "out", shard_rows=10)
    assert (summary.kept, summary.shards) == (6, 7)
    assert [(tmp_path / "out" / f"part-0000{i}.parquet").stat().st_ino for i in range(6)] == inodes
    assert all((tmp_path / "out" / f"part-0000{i}.parquet").stat().st_nlink == 1 for i in range(7))


def test_another_model_or_setting_is_refused_and_nothing_is_left_behind(tmp_path):
    encode_corpus(Stub(), write(tmp_path / "c.jsonl", OLD), tmp_path / "out", shard_rows=7)
    before, corpus = content(tmp_path / "out"), write(tmp_path / "c.jsonl", newer())
    for stub, settings, said in (
        (Stub(name="other"), {}, "model_hash"),
        (Stub(prompts={"document": "passage: "}), {}, "prompt"),
        (Stub(), {"precision": "int8"}, "precision"),
        (Stub(), {"truncate_dim": 8}, "truncate_dim"),
        (Stub(), {"shard_rows": 8}, "shard_rows"),
    ):
        with pytest.raises(FileExistsError, match=rf"made of another .*\b{said}\b"):
            update_corpus(stub, corpus, tmp_path / "out", **{"shard_rows": 7, **settings})
    with pytest.raises(FileNotFoundError, match="holds no vectors"):
        update_corpus(Stub(), corpus, tmp_path / "none", shard_rows=7)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        update_corpus(Stub(), tmp_path / "none.jsonl", tmp_path / "out", shard_rows=7)
    write(corpus, [*OLD, ("d0", "again")])
    with pytest.raises(ValueError, match="its id, 'd0', is that of"):
        update_corpus(Stub(), corpus, tmp_path / "out", shard_rows=7)
    with pytest.raises(ValueError, match="vectors of 8 dimensions"):
        update_corpus(Stub(8), write(corpus, newer()), tmp_path / "out", shard_rows=7)
    with pytest.raises(FileExistsError, match=r"made of another input; .*--update"):
        encode_corpus(Stub(), corpus, tmp_path / "out", shard_rows=7)
    assert content(tmp_path / "out") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "out"]


def stopped(rows: Rows, tmp_path: Path, *, after: int) -> Path:
    """Begin an update that ends with an error after that many calls of the model."""
    corpus = write(tmp_path / "c.jsonl", rows)

    class Stops(Stub):
        def encode_document(self, inputs, **options):
            if len(self.asked) == after:
                raise KeyboardInterrupt
            return super().encode_document(inputs, **options)

    Stops.__name__ = "Stub"
    with pytest.raises(KeyboardInterrupt):
        update_corpus(Stops(), corpus, tmp_path / "out", shard_rows=3)
    return corpus


def test_a_stopped_update_encodes_nothing_twice(tmp_path):
    """The older version stays readable meanwhile; a corpus that has changed once more finds what was encoded too."""
    encode_corpus(Stub(), write(tmp_path / "c.jsonl", OLD), tmp_path / "out", shard_rows=3)
    before = content(tmp_path / "out")
    corpus = stopped(newer(), tmp_path, after=2)
    assert content(tmp_path / "out") == before and read_vectors(tmp_path / "out").load()[0][0] == "d0"
    rows = [*newer()[1:], ("last", "last")]
    stub = Stub()
    summary = update_corpus(stub, write(corpus, rows), tmp_path / "out", shard_rows=3)
    assert summary.changes is not None and summary.changes.encoded == 4, "9 texts, less 6, and one more"
    assert sum(asked["rows"] for asked in stub.asked) == 4
    encode_corpus(Stub(), corpus, tmp_path / "fresh", shard_rows=3)
    assert content(tmp_path / "out") == content(tmp_path / "fresh")
    assert not (tmp_path / ".out.update").exists()


def test_what_another_job_left_is_not_used(tmp_path):
    encode_corpus(Stub(), write(tmp_path / "c.jsonl", OLD), tmp_path / "out", shard_rows=3)
    stopped(newer(), tmp_path, after=2)
    for path in sorted((tmp_path / "out").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    other = Stub(name="other", prompts={"document": "x"})
    encode_corpus(other, write(tmp_path / "c.jsonl", OLD), tmp_path / "out", shard_rows=3)
    corpus = write(tmp_path / "c.jsonl", newer())
    update_corpus(other, corpus, tmp_path / "out", shard_rows=3)
    _, vectors = read_vectors(tmp_path / "out").load()
    assert np.array_equal(vectors, other.encode_document([text for _, text in newer()]))


def test_folders_without_hashes_keep_whole_shards_and_learn_hashes(tmp_path):
    """The command that made them, given again, adds them without a call of the model."""
    corpus, out = write(tmp_path / "c.jsonl", OLD), tmp_path / "out"
    encode_corpus(Stub(), corpus, out, shard_rows=20)
    whole = content(out)
    for path in (out / "__embrew__").glob("*.texts"):
        path.unlink()
    stub = Stub()
    write(corpus, [*OLD[:50], ("d50", "changed"), *OLD[51:]])
    update_corpus(stub, corpus, out, shard_rows=20)
    assert sum(asked["rows"] for asked in stub.asked) == 20, "the shard with the changed row"
    for path in (out / "__embrew__").glob("*.texts"):
        path.unlink()
    write(corpus, OLD)
    update_corpus(Stub(), corpus, out, shard_rows=20)
    for path in (out / "__embrew__").glob("*.texts"):
        path.unlink()
    assert encode_corpus(stub, corpus, out, shard_rows=20).kept == 3 and content(out) == whole


def test_a_reader_is_told_that_the_folder_was_replaced(tmp_path):
    encode_corpus(Stub(), write(tmp_path / "c.jsonl", OLD), tmp_path / "out", shard_rows=7)
    reading = iter(read_vectors(tmp_path / "out"))
    next(reading)
    update_corpus(Stub(), write(tmp_path / "c.jsonl", newer()), tmp_path / "out", shard_rows=7)
    with pytest.raises(ValueError, match="was replaced while it was read; open it again"):
        list(reading)
