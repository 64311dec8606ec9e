"""Queries won and lost in a report: which are listed, with which texts, and how large they are."""

from __future__ import annotations

import pytest

from embrew.report.queries import TEXT_LENGTH, QueryChange, listed, section
from tests.report.changed import ranked, result, retrieval_folder, subject
from tests.report.tasks import write_rows


def change(number: int, won: bool) -> QueryChange:
    return QueryChange(f"q{number}", 2, 1 if won else 3, [], [])


def test_as_many_changes_are_listed_that_are_won_as_lost():
    changes = [change(i, won=i % 3 == 0) for i in range(9)]
    assert [one.query for one in listed(changes, 2)] == ["q0", "q3", "q1", "q2"]  # the largest first
    assert [one.query for one in listed(changes, 5)] == ["q0", "q3", "q6", "q1", "q2", "q4", "q5", "q7"]


@pytest.fixture
def folder(tmp_path):
    documents = {f"d{i}": f"document {i}" for i in range(8)}
    queries = {"a": "first query", "b": "second query", "c": "third query"}
    return retrieval_folder(tmp_path / "T", queries, documents, ["a d1 1", "a d2 2", "b d7 1", "c d3 1", "c d0 0"])


def models(one, other):
    return {"one": [one], "other": [other]}


TOPS = (
    {"a": (1, ["d1", "d0", "d3", "d4", "d5", "d2"]), "b": (40, ["d0"]), "c": (1, ["d3"])},
    {"a": (6, ["d0", "d3", "d4", "d5", "d6", "d2"]), "b": (None, ["d0"]), "c": (1, ["d3"])},
)


def test_an_entry_has_texts_and_marks_relevant_documents(folder):
    content = section(subject(models(ranked("T", TOPS[0]), ranked("T", TOPS[1])), folder))
    (changes,) = content.values["lists"]
    assert (changes["kind"], changes["won"], changes["lost"]) == ("queries", 0, 2)
    assert changes["names"] == ("one", "other")
    first, second = changes["entries"]
    assert (first["query"]["name"], first["query"]["text"]) == ("a", "first query")
    assert first["ranks"] == (1, 6)
    # Three documents of each model; d2 is relevant and at neither.
    assert [[text["name"] for text in side] for side in first["sides"]] == [["d1", "d0", "d3"], ["d0", "d3", "d4"]]
    assert [text["text"] for side in first["sides"] for text in side if text["is_right"]] == ["document 1"]
    assert first["missed"] == []
    # Of b, no relevant document is among those shown: one is shown beside them.
    assert second["ranks"] == (40, None) and not any(text["is_right"] for side in second["sides"] for text in side)
    assert [(text["name"], text["text"]) for text in second["missed"]] == [("d7", "document 7")]
    assert content.document["tasks"][0]["models"][0]["examples"][0] == {
        "query": "a",
        "before": 1,
        "after": 6,
        "top_before": TOPS[0]["a"][1],
        "top_after": TOPS[1]["a"][1],
    }


def test_without_data_only_ids_are_shown():
    content = section(subject(models(ranked("T", TOPS[0]), ranked("T", TOPS[1]))))
    assert content.values["without_texts"] == ["T test, 3 queries"]
    first = content.values["lists"][0]["entries"][0]
    texts = [first["query"], *(text for side in first["sides"] for text in side)]
    assert [text["name"] for text in texts if text["is_right"]] == ["d1"]  # by its rank
    assert all(text["text"] is None for text in texts)


def test_results_without_ids_are_named():
    old = result("T", "retrieval", 2, score=[0.0, 1.0])
    content = section(subject(models(old, ranked("T", {"a": (1, []), "b": (2, [])}))))
    assert content.document["without_ids"] == ["T test, 2 queries"]
    assert content.values["lists"] == []
    assert section(subject(models(result("C", "clustering", 2), result("C", "clustering", 2)))) is None


def test_candidates_of_reranking_are_read_by_their_names(tmp_path):
    rows = [
        {"query": "q one", "positive": ["p", "both"], "negative": ["n", "both", "m"]},
        {"query": "q two", "positive": ["r"], "negative": ["s"]},
    ]
    write_rows(tmp_path / "R", rows)
    tops = [["negative 3", "positive 2", "negative 1"], ["positive 2", "positive 1", "negative 3"]]
    one, other = (
        ranked("R", {"1": (rank, top), "2": (1, ["positive 1", "negative 1"])}, "reranking")
        for rank, top in zip((2, 1), tops, strict=True)
    )
    (changes,) = section(subject(models(one, other), tmp_path / "R")).values["lists"]
    (entry,) = changes["entries"]
    assert (entry["query"]["name"], entry["query"]["text"]) == ("1", "q one")
    assert [[text["text"] for text in side] for side in entry["sides"]] == [["m", "both", "n"], ["both", "p", "m"]]
    assert {text["text"] for side in entry["sides"] for text in side if text["is_right"]} == {"p", "both"}


def test_pairs_have_their_sentences(tmp_path):
    rows = [{"sentence1": f"left {i}", "sentence2": "same", "score": float(i)} for i in range(4)]
    write_rows(tmp_path / "S", rows)
    gold = [0.0, 1.0, 2.0, 3.0]
    one = result("S", "sts", 4, predicted=[0.1, 0.2, 0.3, 0.4], gold=gold)
    other = result("S", "sts", 4, predicted=[0.4, 0.2, 0.3, 0.1], gold=gold)
    (changes,) = section(subject(models(one, other), tmp_path / "S")).values["lists"]
    first = changes["entries"][0]
    assert [text["text"] for text in first["texts"]] == ["left 0", "same"]
    assert (first["gold"], first["cosines"], first["ranks"], first["won"]) == (0.0, [0.1, 0.4], (1.0, 1.0, 4.0), False)
    assert (changes["won"], changes["lost"]) == (0, 2)


def test_long_texts_and_names_are_truncated_and_say_so(tmp_path):
    name = "q" * 120
    retrieval_folder(tmp_path / "T", {name: "a" * 1000}, {"d": "b" * 1000}, [f"{name} d 1"])
    tops = ({name: (1, ["d"])}, {name: (None, [])})
    (changes,) = section(subject(models(*(ranked("T", top) for top in tops)), tmp_path / "T")).values["lists"]
    (entry,) = changes["entries"]
    for text, length in ((entry["query"], 100), (entry["sides"][0][0], 1)):
        assert (len(text["name"]), len(text["text"]), text["length"]) == (length, TEXT_LENGTH, 1000)
    classes = [
        result("C", "classification", 1, gold=["g" * 200], predicted=[predicted]) for predicted in ("p", "g" * 200)
    ]
    (entry,) = section(subject(models(*classes))).values["lists"][0]["entries"]
    assert [len(name) for name in entry["classes"]] == [100, 1]
