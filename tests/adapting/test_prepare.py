"""Data of an adaptation: what is held out is in no training file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from embrew.adapting.baselines import score_bm25
from embrew.data.beir import read_beir
from embrew.data.fingerprints import normalised
from tests.adapting.data import prepare
from tests.conftest import SENTENCES
from tests.rows import read_rows, write_rows


def words(i: int) -> str:
    return f"Number {i} is said first. {SENTENCES[i % 5]} Then {i * 7} follows, and nothing else is known of case {i}."


@pytest.fixture
def docs(tmp_path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.md").write_text(f"# Case {i}\n\n{words(i)}\n")
    return folder


@pytest.fixture
def write(tmp_path) -> Callable[[int], Path]:
    def pairs(count: int) -> Path:
        rows = [{"question": f"What is known of case {i}?", "answer": words(i)} for i in range(count)]
        return write_rows(tmp_path / "pairs.jsonl", rows)

    return pairs


def texts(path: Path, *columns: str) -> set[str]:
    return {normalised(row[column]) for row in read_rows(path) for column in columns}


def test_what_is_held_out_is_not_trained_on(docs, write, tmp_path):
    data = prepare(docs, write(40), tmp_path / "data")
    test = read_beir(data.test, "test")
    assert len(test.queries) == 8 and data.count("train_pairs") == 24 and data.count("linked") == 40
    trained = texts(data.pairs, "query", "positive") | texts(data.passages, "text")
    corpus = {document.id: document.content for document in test.corpus}
    for query, grades in test.qrels.items():
        assert normalised(test.queries[query]) not in trained
        for document in grades:
            right = normalised(corpus[document])
            assert not any(right in text or text in right for text in trained)
            alike = [i for i, text in corpus.items() if right in normalised(text)]
            assert alike == [document], "the passage that holds the answer would be right, and count as wrong"
    assert data.count("documents_held_out") == 16 and data.count("train_passages") == 24
    assert prepare(docs, tmp_path / "pairs.jsonl", tmp_path / "data").manifest == data.manifest


def test_changed_files_are_refused(docs, write, tmp_path):
    prepare(docs, write(40), tmp_path / "data")
    with pytest.raises(FileExistsError, match="other files or settings \\(max_chars\\)"):
        prepare(docs, tmp_path / "pairs.jsonl", tmp_path / "data", max_chars=100)
    (docs / "0.md").write_text("other words")
    with pytest.raises(FileExistsError, match="other files or settings \\(sha256\\)"):
        prepare(docs, tmp_path / "pairs.jsonl", tmp_path / "data")


def test_wrong_choices_are_negatives_and_are_searched(docs, tmp_path):
    rows = [{"question": f"Which is it, {i}?", "choices": [f"no {i}", f"yes {i}"], "answer": "B"} for i in range(30)]
    data = prepare(docs, write_rows(tmp_path / "pairs.jsonl", rows), tmp_path / "data")
    first = json.loads(data.pairs.read_text().splitlines()[0])
    assert first["negatives"] == [first["positive"].replace("yes", "no")]
    test = read_beir(data.test, "test")
    corpus = {document.id: document.content for document in test.corpus}
    for query, (document,) in test.qrels.items():
        number = test.queries[query].split()[-1].rstrip("?")
        assert corpus[document] == f"yes {number}" and f"no {number}" in corpus.values()


def test_a_question_that_is_a_document_has_its_id(tmp_path):
    """Duplicate questions, each the answer of the other: evaluation leaves a query's own text out by id and text."""
    both = [(f"How to do {i}, by hand?", f"{words(i)} By hand?") for i in range(40)]
    rows = [{"question": q, "answer": a} for pair in both for q, a in (pair, pair[::-1])]
    test = prepare(None, write_rows(tmp_path / "pairs.jsonl", rows), tmp_path / "data").test
    result = score_bm25(test, "test", tmp_path / "out")
    assert result.counts["self_matches"] == result.counts["queries"] > 10
    own = dict(zip(result.examples["query"], result.examples["top"], strict=True))
    assert not [query for query, top in own.items() if query in top]
    corpus = {document.id: document.content for document in read_beir(test, "test").corpus}
    assert all(corpus[query] == text for query, text in read_beir(test, "test").queries.items())


def test_no_pairs(docs, tmp_path):
    """First sentences of held-out documents stand in for questions; those of the others are trained on."""
    data = prepare(docs, None, tmp_path / "data")
    assert data.manifest["questions_made"] and data.count("documents_held_out") == 8
    test = read_beir(data.test, "test")
    assert len(test.queries) == len(read_beir(data.dev, "dev").queries) == 4
    trained = texts(data.pairs, "query") | texts(data.passages, "text")
    for text in test.queries.values():
        assert text.startswith("Number") and normalised(text) not in trained
        assert not any(normalised(text) in passage for passage in trained)


def test_one_document_without_pairs(tmp_path):
    """Its last passages are held out."""
    (tmp_path / "book.txt").write_text("\n\n".join(words(i) for i in range(40)))
    data = prepare(tmp_path / "book.txt", None, tmp_path / "data", max_chars=200)
    assert not data.manifest["by_document"] and data.count("documents_held_out") == 0
    assert data.count("test_queries") == data.count("dev_queries") == 4
    trained = texts(data.passages, "text")
    assert not any(normalised(text) in one for text in read_beir(data.test, "test").queries.values() for one in trained)


@pytest.mark.parametrize(("passages", "whole"), [(120, False), (8, True)])
def test_documents_of_unequal_length_without_pairs(docs, tmp_path, passages, whole):
    """Held out is a share of the passages, not of the documents; a manual among leaflets is not held out whole."""
    (docs / "manual.md").write_text("\n\n".join(words(i) for i in range(100, 100 + passages)))
    for i in range(20, 40):
        (docs / f"{i}.md").unlink()
    data = prepare(docs, None, tmp_path / "data", max_chars=200)
    queries = data.count("test_queries") + data.count("dev_queries")
    assert 0.7 < queries / (0.2 * data.count("passages")) <= 1.5
    assert data.manifest["by_document"] == whole
    trained = texts(data.passages, "text")
    assert not any(normalised(text) in one for text in read_beir(data.test, "test").queries.values() for one in trained)


def test_an_index_at_the_end_is_not_what_is_held_out(tmp_path):
    """Of passages that can have no question, none counts."""
    index = "\n\n".join(f"term {i}, {i}" for i in range(400))
    (tmp_path / "book.txt").write_text("\n\n".join(words(i) for i in range(40)) + "\n\n" + index)
    data = prepare(tmp_path / "book.txt", None, tmp_path / "data", max_chars=200)
    assert data.count("passages") > 60
    assert data.count("test_queries") == data.count("dev_queries") == 4


def test_manuals_with_the_same_appendix_and_two_versions(tmp_path):
    """What two documents have is in dev or in the test; of a held-out version, the other one is not trained on."""
    folder = tmp_path / "docs"
    folder.mkdir()
    appendix = "\n\n".join(words(i) for i in range(900, 904))
    for name, first in (("a", 0), ("b", 100)):
        (folder / f"{name}.txt").write_text("\n\n".join([*(words(i) for i in range(first, first + 20)), appendix]))
    with_appendix = prepare(folder, None, tmp_path / "appendix", max_chars=200)
    for name in "ab":
        (folder / f"{name}.txt").unlink()
    for i in range(6):
        for version in (1, 2):
            text = "\n\n".join(words(j) for j in range(200 + 10 * i, 210 + 10 * i))
            (folder / f"v{version}-{i}.txt").write_text(f"{text}\n\nThis is version {version} of {i}.")
    for data in (with_appendix, prepare(folder, None, tmp_path / "versions", max_chars=200)):
        dev, test = read_beir(data.dev, "dev"), read_beir(data.test, "test")
        assert min(len(dev.queries), len(test.queries)) >= 2
        assert not set(dev.queries.values()) & set(test.queries.values())
        trained = texts(data.passages, "text")
        for text in (*dev.queries.values(), *test.queries.values()):
            assert not any(normalised(text) in passage for passage in trained)


def test_scripts_without_spaces(tmp_path):
    rows = [f"第{i}号案件首先被记录在案。随后发生的是{i * 7}号事件，关于它没有更多的信息可以查到。" for i in range(40)]
    (tmp_path / "book.txt").write_text("\n\n".join(rows))
    data = prepare(tmp_path / "book.txt", None, tmp_path / "data", max_chars=60)
    assert data.count("test_queries") == data.count("dev_queries") == 4


def test_one_document_with_few_pairs(tmp_path):
    """A handbook and a few questions: its passages are trained on, but those that hold an answer."""
    (tmp_path / "book.txt").write_text("\n\n".join(words(i) for i in range(40)))
    rows = [{"question": f"What of case {i}?", "answer": words(i), "source": "book"} for i in range(5)]
    data = prepare(tmp_path / "book.txt", write_rows(tmp_path / "pairs.jsonl", rows), tmp_path / "data", max_chars=200)
    assert (data.count("dev_queries"), data.count("test_queries")) == (2, 3) and data.count("train_pairs") == 0
    trained = texts(data.passages, "text")
    held = [normalised(words(i)) for i in range(5)]
    assert len(trained) == 35 and not any(answer in text or text in answer for answer in held for text in trained)


def test_too_little_of_everything(tmp_path):
    (tmp_path / "docs").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no documents"):
        prepare(tmp_path / "docs", None, tmp_path / "data")
    (tmp_path / "docs" / "a.txt").write_text("One sentence alone.")
    with pytest.raises(ValueError, match="1 document in docs, 1 passage: the dev set would have 0 different questions"):
        prepare(tmp_path / "docs", None, tmp_path / "data")
    with pytest.raises(FileNotFoundError, match="pairs.jsonl"):
        prepare(tmp_path / "docs", tmp_path / "pairs.jsonl", tmp_path / "data")
    rows = [{"question": f"question {i}", "answer": f"answer {i}"} for i in range(6)]
    write_rows(tmp_path / "pairs.jsonl", rows)
    with pytest.raises(ValueError, match=r"0 pairs .* give 20 pairs or more \(.*\), or more documents of two or more"):
        prepare(tmp_path / "docs", tmp_path / "pairs.jsonl", tmp_path / "data")
    assert not (tmp_path / "data").exists()
