"""Repeated ids are refused with both places, or listed; numbers in place of ids never equal a given id."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from embrew.corpus import encode_corpus, read_vectors
from embrew.corpus.job import REJECTS
from embrew.corpus.rows import Seen
from tests.corpus.stub import Stub


def write(path: Path, ids: list[str | int | None]) -> Path:
    rows = [{"text": f"text {i}", **({} if name is None else {"id": name})} for i, name in enumerate(ids)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("shard_rows", [2, 100])
@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a", "b", "c", "d", "a"], r"line 5: its id, 'a', is that of .*c.jsonl, line 1; make ids unique"),
        (["a", 7, "c", "d", "7"], r"line 5: its id, '7', is that of .*c.jsonl, line 2; make ids unique"),
        (
            ["a", "5", "c", "d", None],
            r"line 5: it has no id, and its number, '5', is that of .*c.jsonl, line 2; make ids unique",
        ),
        (
            [None, "b", "c", "d", 1],
            r"line 5: its id, '1', is that of .*c.jsonl, line 1, which has no id; make ids unique and give",
        ),
    ],
)
def test_both_places_are_named_or_the_row_is_listed(ids, said, shard_rows, tmp_path):
    corpus = write(tmp_path / "c.jsonl", ids)
    with pytest.raises(ValueError, match=said):
        encode_corpus(Stub(), corpus, tmp_path / "strict", shard_rows=shard_rows)
    assert len(list((tmp_path / "strict").glob("part-*"))) == (2 if shard_rows == 2 else 0)
    summary = encode_corpus(Stub(), corpus, tmp_path / "skip", shard_rows=shard_rows, on_bad_rows="skip")
    (listed,) = [json.loads(line) for line in (tmp_path / "skip" / REJECTS).read_text().splitlines()]
    assert (summary.rows, summary.rejected, listed["line"]) == (4, 1, 5)
    assert "of an earlier row, which is kept" in listed["reason"]
    assert len(set(read_vectors(tmp_path / "skip").load()[0])) == 4


def test_the_files_of_a_folder_are_one_corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    write(folder / "a.jsonl", ["a", "b"])
    (folder / "b.txt").write_text("one\ntwo\n")
    write(folder / "c.jsonl", ["c", "b.txt:2"])
    with pytest.raises(
        ValueError, match=r"c.jsonl, line 2: its id, 'b.txt:2', is that of .*b.txt, line 2, which has no id"
    ):
        encode_corpus(Stub(), folder, tmp_path / "out")


def test_texts_seen_before_are_found_with_sixteen_bytes_each():
    generator, seen, oracle = np.random.default_rng(0), Seen(), set[str]()
    tracemalloc.start()
    for _ in range(40):
        texts = [f"document-{number}" for number in generator.integers(0, 50_000, size=1024)]
        expected = [not (text in oracle or oracle.add(text)) for text in texts]
        assert seen.add(texts) == expected
    del oracle, texts, expected
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert memory < 20 * 40 * 1024 and seen.add([]) == []
