"""Nothing is both trained on and held out."""

from __future__ import annotations

import pytest

from embrew.adapting.defaults import read_defaults
from embrew.adapting.preparation.split import Split, connected, find_documents, without_duplicates
from embrew.adapting.preparation.split import split_pairs as split_by
from embrew.analysis.qa import QA
from embrew.data.beir import Document

HELD_OUT = read_defaults().held_out
LONG = "the quick brown fox jumps over the lazy dog near the old river bank"


def split_pairs(pairs: list[QA], documents: list[Document], *, seed: int = 42) -> Split:
    return split_by(pairs, documents, HELD_OUT, seed=seed)


def test_an_answer_is_found_in_its_document_word_by_word():
    documents = [
        Document("a.md", "Some words before. The quick, brown fox jumps\nover the lazy DOG near the old river bank!"),
        Document("b.md", "Something else entirely, about cats that sleep and purr all day long in the sun."),
        Document("c.jsonl#7", "short text", "Title"),
    ]
    pairs = [
        QA("q", LONG),
        QA("q", "the lazy dog"),  # too short to say anything
        QA("q", f"In the beginning {documents[1].text} and so on"),  # holds a whole document
        QA("q", "x", source="b"),
        QA("q", "x", source="7"),
        QA("q", "x", source="Title"),
        QA("q", LONG.replace("lazy", "eager")),
    ]
    found = [sorted(names) for names in find_documents(pairs, documents)]
    assert found == [["a.md"], [], ["b.md"], ["b.md"], ["c.jsonl#7"], ["c.jsonl#7"], []]


def test_pairs_are_connected_through_questions_answers_and_documents():
    pairs = [
        QA("one", "first"),
        QA("ONE ", LONG),  # the question of 0
        QA("two", LONG.upper()),  # the answer of 1
        QA("zero", "First"),  # the answer of 0, but a short one
        QA("three", "third"),
        QA("four", "fourth"),
        QA("five", "fifth", source="book"),
        QA("six", "sixth", source="book"),  # a source that is no document here
    ]
    documents = [(), (), (), (), ("d",), ("d", "e"), (), ()]
    assert connected(pairs, documents) == [[0, 1, 2], [3], [4, 5], [6, 7]]


@pytest.mark.parametrize("seed", range(5))
def test_parts_share_nothing(seed):
    """Chains of pairs that share a question, an answer or a document lie in one part."""
    documents = [Document(f"d{i}.txt", f"text {i} " + LONG.replace("fox", f"fox{i}")) for i in range(100)]
    pairs = []
    for i in range(100):
        pairs.append(QA(f"question {i}", LONG.replace("fox", f"fox{i}")))
        pairs.append(QA(f"question {i}", f"another answer {i}, of which there is a lot to say"))
        pairs.append(QA(f"other question {i}", f"Another  answer {i} of which there is a lot to say."))
    found = split_pairs(pairs, documents, seed=seed)
    counts = {part: found.parts.count(part) for part in ("train", "dev", "test")}
    assert counts["test"] == pytest.approx(60, abs=3) and counts["dev"] == pytest.approx(30, abs=3)
    for i in range(100):
        assert len(set(found.parts[3 * i : 3 * i + 3])) == 1
    assert found.by_document and found.linked == 100
    held = {f"d{i}.txt" for i in range(100) if found.parts[3 * i] != "train"}
    assert found.held_out == held, "documents of held-out pairs are not trained on"


def test_few_pairs_are_all_held_out():
    """Half of them are dev, half the test; a pair more, and most are trained on."""
    pairs = [QA(f"q{i}", f"a{i}") for i in range(HELD_OUT.few - 1)]
    assert split_pairs(pairs, []).parts == ("dev",) * 9 + ("test",) * 10
    parts = split_pairs([*pairs, QA("q", "a")], []).parts
    assert [parts.count(part) for part in ("train", "dev", "test")] == [12, 4, 4]


def test_few_pairs_of_one_document_stay_together():
    pairs = [QA(f"q{i}", f"a{i}", source="ab"[i % 2]) for i in range(10)]
    documents = [Document(name, f"text {name}") for name in "abc"]
    assert split_pairs(pairs, documents).parts == ("dev", "test") * 5
    alone = [QA(f"q{i}", f"a{i}", source="a") for i in range(10)]
    assert split_pairs(alone, documents).parts == ("dev",) * 5 + ("test",) * 5, "one document, by question"


def test_one_document_is_split_by_question():
    documents = [Document("book.pdf", LONG)]
    pairs = [QA(f"q{i}", f"a{i}", source="book") for i in range(50)]
    found = split_pairs(pairs, documents)
    assert not found.by_document and not found.held_out
    assert found.parts.count("test") == 10


def test_few_pairs_of_all_documents_leave_the_documents():
    pairs = [QA(f"q{i}", f"a{i}", source="book") for i in range(5)]
    found = split_pairs(pairs, [Document("book.pdf", LONG)])
    assert set(found.parts) == {"dev", "test"} and not found.by_document and not found.held_out


def test_one_long_answer_to_nearly_everything():
    """The connected pairs are trained on, the others held out."""
    pairs = [QA(f"q{i}", LONG) for i in range(40)] + [QA("q", "no"), QA("r", "perhaps")]
    found = split_pairs(pairs, [])
    assert found.parts[:40] == ("train",) * 40 and set(found.parts[40:]) == {"dev", "test"}


@pytest.mark.parametrize("seed", range(5))
def test_classes_of_answers_are_divided_in_proportion(seed):
    """The numbers of PubMedQA's labels, and answers that only one pair has."""
    answers = ["yes"] * 552 + ["no"] * 338 + ["maybe"] * 110
    pairs = [QA(f"question {i}?", answer, source=f"{i}.txt") for i, answer in enumerate(answers)]
    found = split_pairs(pairs, [], seed=seed)
    for part, share in (("train", 0.7), ("test", 0.2), ("dev", 0.1)):
        own = [pair.answer for pair, where in zip(pairs, found.parts, strict=True) if where == part]
        assert len(own) == 1000 * share
        for answer in ("yes", "no", "maybe"):
            assert own.count(answer) == pytest.approx(answers.count(answer) * share, abs=1.5)
    mixed = [QA(f"question {i}?", "yes" if i < 50 else f"it is {i}") for i in range(100)]
    parts = split_pairs(mixed, [], seed=seed).parts
    assert parts[:50].count("test") == parts[50:].count("test") == 10


def test_pairs_that_say_the_same_are_kept_once():
    assert without_duplicates([QA("a", "b"), QA("A ", "b"), QA("a", "c")]) == [QA("a", "b"), QA("a", "c")]
