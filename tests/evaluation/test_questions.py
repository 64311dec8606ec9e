import pytest

from embrew.data.beir import read_beir
from embrew.evaluation.kinds.rag import Question, read_questions
from tests.conftest import data_folder
from tests.evaluation.scored import write


@pytest.fixture
def folder(tmp_path):
    """Two paragraphs; the same question is asked about both."""
    place = tmp_path / "qa"
    (place / "qrels").mkdir(parents=True)
    texts = {"d1": "Ada was born in London.", "d2": "Emil was born in Bonn."}
    write(place / "corpus.jsonl", *[{"_id": key, "title": "People", "text": text} for key, text in texts.items()])
    queries = {"q1": "Where was she born?", "q2": "Where was she born?", "q3": "not in dev"}
    write(place / "queries.jsonl", *[{"_id": key, "text": text} for key, text in queries.items()])
    (place / "qrels" / "dev.tsv").write_text("q1\td1\t1\nq2\td2\t1\n")
    return place


ROWS = [
    {"instruction": "Where was she born?", "context": "Ada was born in London.", "answers": ["London", "in London"]},
    {
        "instruction": "Where was she born?",
        "context": " Emil was born in Bonn.\n",
        "answers": {"text": ["Bonn", "Bonn"]},
    },
    {"instruction": "Where was she born?", "context": "Another paragraph.", "answers": ["Rome"]},
]
COLUMNS = {"question": "instruction"}


def test_answers_are_joined_on_question_and_context(folder, tmp_path):
    file = write(tmp_path / "answers.jsonl", *ROWS)
    assert read_questions(folder, read_beir(folder, "dev"), answers=file, columns=COLUMNS) == [
        Question("q1", "Where was she born?", ("London", "in London")),
        Question("q2", "Where was she born?", ("Bonn",)),
    ]


def test_a_question_without_its_context_is_named(folder, tmp_path):
    file = write(tmp_path / "answers.jsonl", ROWS[0], ROWS[2])
    with pytest.raises(
        ValueError, match=r"answers.jsonl has no answer for 1 of 2 queries, the first: 'q2' \('Where was"
    ):
        read_questions(folder, read_beir(folder, "dev"), answers=file, columns=COLUMNS)


def test_a_question_alone_does_where_it_is_clear(folder, tmp_path):
    data = read_beir(folder, "dev")
    row = {"question": "Where was she born?", "answer": "London"}
    file = write(tmp_path / "one.jsonl", row, row)
    assert {question.answers for question in read_questions(folder, data, answers=file)} == {("London",)}
    file = write(tmp_path / "two.jsonl", row, {**row, "answer": "Bonn"})
    with pytest.raises(ValueError, match="'Where was she born\\?' in several ways and has no column context"):
        read_questions(folder, data, answers=file)


def test_queries_may_bring_their_answers(folder):
    data = read_beir(folder, "dev")
    with pytest.raises(ValueError, match="line 1 has no column answers; found _id, text. Add it, or name a file"):
        read_questions(folder, data)
    text = "Where was she born?"
    rows = [
        {"_id": "q1", "text": text, "answers": ["London"]},
        {"_id": "q2", "text": text, "answers": "Bonn"},
        {"_id": "q3", "text": "x"},
    ]
    write(folder / "queries.jsonl", *rows)
    assert [question.answers for question in read_questions(folder, data)] == [("London",), ("Bonn",)]
    write(folder / "queries.jsonl", {**rows[0], "gold": ["Paris"]}, {**rows[1], "gold": []})
    with pytest.raises(ValueError, match="no answer for 1 of 2 queries, the first: 'q2'"):
        read_questions(folder, data, columns={"answers": "gold"})
    write(folder / "queries.jsonl", {**rows[0], "answers": 3})
    with pytest.raises(ValueError, match="holds a int, not a text"):
        read_questions(folder, data)


@pytest.mark.slow
def test_squad_has_an_answer_for_every_question():
    root = data_folder()
    data = read_beir(root / "squad_retrieval", "dev")
    found = read_questions(
        root / "squad_retrieval", data, answers=root / "squad_instruct" / "dev.jsonl.gz", columns=COLUMNS
    )
    assert len(found) == 10534
    assert all(question.answers for question in found)
