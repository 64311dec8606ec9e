"""Counts of training rows that hold a text of an evaluation set, done by hand."""

from datasets import Dataset

from embrew.data.fingerprints import fingerprints, normalised
from embrew.evaluation.overlap import count_overlaps, hash_texts, overlap_lines

ROWS = [
    {"query": "The  cat\nsat.", "positive": "one", "negatives": ["x", "y"]},  # query, but for case and white space
    {
        "query": "a",
        "positive": "Cafe\u0301",
        "negatives": ["the cat sat."],
    },  # positive in another form, negative
    {"query": "b", "positive": "two", "negatives": []},
    {"query": "c", "positive": "The cat sat", "negatives": ["z", "THE CAT SAT."]},  # without the full stop: no match
]


def pairs():
    return Dataset.from_list(ROWS)


def test_normalised():
    assert normalised("  The\u00a0CAT \n sat ") == "the cat sat"
    assert normalised("Cafe\u0301") == normalised("CAF\u00c9") == "caf\u00e9"  # typos: ignore
    assert normalised("cat.") != normalised("cat")


def test_counts_by_hand():
    known = hash_texts({"animals": iter(["The cat sat.", "A dog.", " "]), "places": iter(["café", "a hotel"])})
    assert {name: len(hashes) for name, hashes in known.items()} == {"animals": 2, "places": 2}, "no empty text"
    assert count_overlaps(pairs(), known) == {
        "animals": {
            "rows": 3,
            "share": 0.75,
            "columns": {"query": 1, "positive": 0, "negatives": 2},
            "examples": ["The cat sat."],
        },
        "places": {
            "rows": 1,
            "share": 0.25,
            "columns": {"query": 0, "positive": 1, "negatives": 0},
            "examples": ["Cafe\u0301"],
        },
    }


def test_a_row_counts_once_however_many_of_its_texts_are_known():
    rows = Dataset.from_list([{"query": "a", "positive": "a", "negatives": ["a", "a"]}] * 3)
    (found,) = count_overlaps(rows, hash_texts({"set": ["a"]})).values()
    assert (found["rows"], found["columns"]) == (3, {"query": 3, "positive": 3, "negatives": 3})


def test_over_several_blocks(monkeypatch):
    """As a plain loop over all texts says it."""
    monkeypatch.setattr("embrew.evaluation.overlap.BLOCK", 7)
    texts = [f"text {i}" for i in range(50)]
    judged = [f"TEXT  {i}" for i in range(0, 90, 3)]
    (found,) = count_overlaps(Dataset.from_dict({"text": texts}), hash_texts({"set": iter(judged)})).values()
    assert found["rows"] == found["columns"]["text"] == sum(i % 3 == 0 for i in range(50)) == 17
    assert found["examples"] == ["text 0", "text 3", "text 6", "text 9", "text 12"]


def test_no_texts_at_all():
    assert len(fingerprints([])) == 0
    (found,) = count_overlaps(pairs(), hash_texts({"set": []})).values()
    assert found["rows"] == 0


def test_words():
    known = hash_texts({"animals": ["the cat sat."], "empty": ["nothing like it"]})
    assert overlap_lines("faq", 4, count_overlaps(pairs(), known)) == [
        "3 of 4 rows of faq (75.00%) hold a text of animals (query 1, negatives 2), for example 'The cat sat.'"
    ]
    assert overlap_lines("faq", 4, count_overlaps(pairs(), {"empty": known["empty"]})) == [
        "no row of faq (4) holds a text of empty"
    ]
