"""Repeated ids are refused with both places, or listed; numbers in place of ids never equal a given id."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from embrew.corpus import encode_corpus, read_vectors
from embrew.corpus.ids import Ids
from embrew.corpus.layout import REJECTS
from embrew.corpus.lookup import Lookup
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
        (["a", "5", "c", "d", None], r"line 5: it has no id, and its number, '5', is the id of .*c.jsonl, line 2"),
        ([None, "b", "c", "d", 1], r"line 5: its id, '1', is the number of .*c.jsonl, line 1; give every row an id"),
    ],
)
def test_both_places_are_named_or_the_row_is_listed(
    ids: list[str | int | None], said: str, shard_rows: int, tmp_path: Path
) -> None:
    corpus = write(tmp_path / "c.jsonl", ids)
    with pytest.raises(ValueError, match=said):
        encode_corpus(Stub(), corpus, tmp_path / "strict", shard_rows=shard_rows)
    assert len(list((tmp_path / "strict").glob("part-*"))) == (2 if shard_rows == 2 else 0)
    summary = encode_corpus(Stub(), corpus, tmp_path / "skip", shard_rows=shard_rows, on_bad_rows="skip")
    (listed,) = [json.loads(line) for line in (tmp_path / "skip" / REJECTS).read_text().splitlines()]
    assert (summary.rows, summary.rejected, listed["line"]) == (4, 1, 5)
    assert "of an earlier row, which is kept" in listed["reason"]
    assert len(set(read_vectors(tmp_path / "skip").load()[0])) == 4


def test_the_files_of_a_folder_are_one_corpus(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    write(folder / "a.jsonl", ["a", "b"])
    (folder / "b.txt").write_text("one\ntwo\n")
    write(folder / "c.jsonl", ["c", "b.txt:2"])
    with pytest.raises(ValueError, match=r"c.jsonl, line 2: its id, 'b.txt:2', is the number of .*b.txt, line 2"):
        encode_corpus(Stub(), folder, tmp_path / "out")


def test_ids_take_sixteen_bytes_each() -> None:
    ids, blocks = Ids(), 40
    tracemalloc.start()
    for block in range(blocks):
        assert not any(ids.repeated([f"document-{block * 1024 + i}" for i in range(1024)]))
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert memory < 20 * blocks * 1024
    assert ids.repeated(["document-5", "new", "new", f"document-{blocks * 1024}"]) == [True, False, True, False]


def test_a_lookup_is_a_dictionary() -> None:
    generator, lookup, known = np.random.default_rng(0), Lookup(), dict[int, int]()
    for _ in range(200):
        keys = generator.integers(0, 5000, size=int(generator.integers(0, 60))).astype(np.uint64)
        numbers = generator.integers(0, 10**9, size=len(keys))
        lookup.add(keys, numbers)
        for key, number in zip(keys.tolist(), numbers.tolist(), strict=True):
            known.setdefault(key, number)
    everything = np.arange(6000, dtype=np.uint64)
    assert lookup.find(everything).tolist() == [known.get(key, -1) for key in range(6000)]
    assert len(lookup) == len(known)
