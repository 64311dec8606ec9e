import gzip
import json

import pytest

from embrew.data import read_documents
from embrew.data.beir import Document, RetrievalData, read_beir, read_qrels
from embrew.data.reading import is_beir, qrels_files

HEADER = "query-id\tcorpus-id\tscore\n"


def folder(path, *, gz=False, qrels="qrels/test.tsv", judgements=HEADER + "q1\td1\t1\n"):
    def put(name: str, text: str) -> None:
        file = path / (name + ".gz" if gz else name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(text.encode()) if gz else text.encode())

    documents = [{"_id": "d1", "title": "Title", "text": "text"}, {"_id": "d2", "title": "", "text": "two"}]
    put("corpus.jsonl", "".join(json.dumps(row) + "\n" for row in documents))
    put("queries.jsonl", "".join(json.dumps({"_id": f"q{i}", "text": f"query {i}"}) + "\n" for i in (1, 2, 3)))
    put(qrels, judgements)
    return path


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("qrels", ["qrels/test.tsv", "qrels.test.tsv"])
def test_both_layouts_gz_or_not(tmp_path, gz, qrels):
    place = folder(tmp_path, gz=gz, qrels=qrels)
    assert is_beir(place)
    assert list(qrels_files(place)) == ["test"]
    data = read_beir(place, "test")
    assert [document.content for document in data.corpus] == ["Title text", "two"]
    assert data.queries == {"q1": "query 1"}  # only the judged ones
    assert data.qrels == {"q1": {"d1": 1}}


def test_grades_headers_and_blank_lines(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text("q1\td1\t2\r\n\nq1\td2\t0\nq2\td1\t-1\n")
    assert read_qrels(file) == {"q1": {"d1": 2, "d2": 0}, "q2": {"d1": -1}}
    file.write_text(HEADER + "q1 d1 1\n")
    with pytest.raises(ValueError, match="a.tsv, line 2: expected query-id, corpus-id and an integer"):
        read_qrels(file)


def test_a_judged_query_must_be_there(tmp_path):
    place = folder(tmp_path, judgements="q9\td1\t1\n")
    with pytest.raises(ValueError, match="name 1 queries that do not exist, e.g. 'q9'"):
        read_beir(place, "test")


def test_a_judged_document_must_be_there(tmp_path):
    place = folder(tmp_path, judgements="q1\tx1\t1\nq2\tx2\t1\n")
    with pytest.raises(ValueError, match=r"name no document of the corpus \(e.g. 'x1'; the corpus has .* 'd1'"):
        read_beir(place, "test")
    read_beir(folder(tmp_path, judgements="q1\tx1\t1\nq2\td1\t1\n"), "test")


def test_a_split_is_there_once(tmp_path):
    place = folder(folder(tmp_path), qrels="qrels.test.tsv")
    with pytest.raises(ValueError, match="has the split 'test' twice"):
        qrels_files(place)


def test_documents_from_every_form(tmp_path):
    assert [d.id for d in read_documents(folder(tmp_path / "beir"))] == ["d1", "d2"]
    (tmp_path / "a.txt").write_text("first line\n\nthird line\n")
    assert [(d.id, d.text) for d in read_documents(tmp_path / "a.txt")] == [("1", "first line"), ("3", "third line")]
    (tmp_path / "a.jsonl").write_text('{"id": 7, "text": "seven"}\n{"text": "by number"}\n')
    assert [(d.id, d.title, d.text) for d in read_documents(tmp_path / "a.jsonl")] == [
        ("7", "", "seven"),
        ("2", "", "by number"),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n', "two documents have the id 'a'"),
        ('{"id": "a", "body": "x"}\n', "line 1: a document needs a column text .* found id, body"),
        ('{"id": [1], "text": "x"}\n', "line 1: id is a list"),
        ('{"_id": "a", "text": "x"}\n{"_id": null, "text": "y"}\n', "line 2: _id is null; give every row an id"),
        ("\n", "holds no documents"),
    ],
)
def test_documents_that_cannot_be_used(tmp_path, rows, message):
    (tmp_path / "a.jsonl").write_text(rows)
    with pytest.raises(ValueError, match=message):
        read_documents(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("text", "judged", "by_id", "expected"),
    [
        ("A Query", {}, False, True),
        ("another", {}, False, False),
        ("A Query", {"1": 1}, False, False),
        ("another", {"1": 1}, True, True),
    ],
)
def test_a_document_that_is_the_query_itself(text, judged, by_id, expected):
    data = RetrievalData([Document("1", text)], {"1": "a query"}, {"1": judged}, ignore_identical_ids=by_id)
    assert data.self_matches == ({"1"} if expected else set())
