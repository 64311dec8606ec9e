"""Rows that are set aside: chosen by their texts alone, with all their duplicates, and never too many."""

from __future__ import annotations

import hashlib

import pytest
from datasets import Dataset

from embrew.data.fingerprints import set_aside


def texts(count: int, name: str = "text") -> list[str]:
    return [f"{name} number {i}" for i in range(count)]


def mark(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def rows(values: list[str], column: str = "text") -> Dataset:
    return Dataset.from_dict({column: values})


def test_texts_with_the_smallest_hashes_are_chosen():
    (left,), held = set_aside([rows(texts(2000))], 64)
    chosen = sorted(texts(2000), key=mark)[:64]
    assert [row["text"] for row in held] == chosen
    assert list(left["text"]) == [text for text in texts(2000) if text not in chosen]
    (other,), again = set_aside([rows(texts(2000)[::-1])], 64)
    assert again == held and sorted(other["text"]) == sorted(left["text"])


@pytest.mark.parametrize(("size", "count"), [(39, 0), (40, 2), (60, 3), (1279, 63), (1280, 64), (5000, 64)])
def test_at_most_one_in_twenty(size, count):
    (left,), held = set_aside([rows(texts(size))], 64)
    assert (len(held), len(left)) == (count, size - count)


def test_none_is_asked_for():
    parts = [rows(texts(500)), rows(texts(9), "sentence1")]
    left, held = set_aside(parts, 0)
    assert held == [] and left == parts


def test_duplicates_go_too_in_all_data_sets():
    """Up to case and blanks; of pairs the query decides, and the first of its rows is measured."""
    one = Dataset.from_dict({"query": texts(100), "positive": texts(100, "answer")})
    other = Dataset.from_dict(
        {"query": [text.upper().replace(" ", "  ") for text in texts(100)] + ["new"], "positive": texts(101, "again")}
    )
    (first, second), held = set_aside([one, other], 64)
    assert len(held) == 101 // 20
    queries = {row["query"].lower() for row in held}
    assert {"new"} >= queries - set(texts(100))
    kept = [*first["query"], *(" ".join(query.lower().split()) for query in second["query"])]
    assert len(kept) == 201 - sum(1 if query == "new" else 2 for query in queries)
    assert not set(kept) & queries
    assert all(row["positive"].startswith("answer") for row in held if row["query"] != "new")


def test_a_data_set_that_would_be_lost():
    chosen = min(texts(400), key=mark)
    with pytest.raises(ValueError, match=r"all 1 rows of data set 1 hold texts that would be set aside; leave it out"):
        set_aside([rows(texts(400)), rows([chosen])], 64)
