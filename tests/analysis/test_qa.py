import json

import pytest

from embrew.analysis.qa import QA, read_qa


def rows(path, *values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def plain(pairs):
    return [(pair.question, pair.answer, pair.negatives) for pair in pairs]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "q", "answer": "a"}, ("q", "a", ())),
        ({"query": "q", "document": "a"}, ("q", "a", ())),
        ({"anchor": "q", "positive": "a", "negative": "n"}, ("q", "a", ("n",))),
        ({"query": "q", "pos": ["a"], "neg": ["n", "m"]}, ("q", "a", ("n", "m"))),
        ({"query": "q", "positive": "a", "negative_1": "n", "negative_2": "m"}, ("q", "a", ("n", "m"))),
        ({"question": "q", "answer": "a", "distractors": ["a", "n"]}, ("q", "a", ("n",))),
        # multiple choice: text, letter, place; a list, letters with texts, ARC's form, a column each
        ({"question": "q", "choices": ["x", "a", "y"], "answer": "a"}, ("q", "a", ("x", "y"))),
        ({"question": "q", "choices": ["x", "a", "y"], "answer": "B"}, ("q", "a", ("x", "y"))),
        ({"question": "q", "choices": ["x", "a", "y"], "answer": 1}, ("q", "a", ("x", "y"))),
        ({"question": "q", "choices": ["x", "a", "y"], "label": "1"}, ("q", "a", ("x", "y"))),
        ({"question": "q", "options": {"A": "x", "B": "a"}, "answer": "b"}, ("q", "a", ("x",))),
        ({"question": "q", "choices": {"text": ["x", "a"], "label": ["1", "2"]}, "answerKey": "2"}, ("q", "a", ("x",))),
        ({"question": "q", "A": "x", "B": "a", "C": None, "answer": "B"}, ("q", "a", ("x",))),
        ({"question": "q", "option_a": "a", "option_b": "x", "label": 0}, ("q", "a", ("x",))),
        # listed with consecutive letters or numbers; names and figures that look like it stay whole
        ({"question": "q", "choices": ["A. x", "B. a"], "answer": "B"}, ("q", "a", ("x",))),
        ({"question": "q", "choices": ["(a) x", "(b) a"], "answer": "(b) a"}, ("q", "a", ("x",))),
        ({"question": "q", "A": "A) x", "B": "B) a", "answer": "a"}, ("q", "a", ("x",))),
        ({"question": "q", "answer": "C. a", "negatives": ["A. x", "B. y"]}, ("q", "a", ("x", "y"))),
        ({"question": "q", "choices": ["E. coli", "S. aureus"], "answer": "A"}, ("q", "E. coli", ("S. aureus",))),
        ({"question": "q", "choices": ["1.5 mg", "2.5 mg"], "answer": "1.5 mg"}, ("q", "1.5 mg", ("2.5 mg",))),
        # a choice that is a number is found by its text first
        ({"question": "q", "choices": ["2", "1", "0"], "answer": "1"}, ("q", "1", ("2", "0"))),
    ],
)
def test_forms(row, expected, tmp_path):
    assert plain(read_qa(rows(tmp_path / "pairs.jsonl", row))) == [expected]


def test_several_right_answers_are_a_pair_each(tmp_path):
    pairs = read_qa(rows(tmp_path / "pairs.jsonl", {"question": "q", "answer": ["a", "b"], "negatives": ["n"]}))
    assert plain(pairs) == [("q", "a", ("n",)), ("q", "b", ("n",))]


def test_csv(tmp_path):
    """With a byte order mark, quoted line ends, empty cells, and lists as JSON."""
    path = tmp_path / "pairs.csv"
    path.write_text('question,answer,choices,doc\n"a, or\nb?",B,"[""x"", ""y""]",one.md\nq,x,,\n', encoding="utf-8-sig")
    first, second = read_qa(path)
    assert first == QA("a, or\nb?", "y", ("x",), "one.md", f"{path}, line 3")
    assert (second.answer, second.negatives, second.source) == ("x", (), None)


def test_other_columns_are_mapped(tmp_path):
    path = rows(tmp_path / "pairs.jsonl", {"frage": "q", "antwort": "a", "datei": 7})
    (pair,) = read_qa(path, columns={"question": "frage", "answer": "antwort", "source": "datei"})
    assert (pair.question, pair.answer, pair.source) == ("q", "a", "7")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"frage": "q", "antwort": "a"}, "line 1: no column for the question; found frage, antwort. Known are"),
        ({"question": "q", "response": "a"}, "no column for the answer"),
        ({"question": "q", "label": 1}, "no column for the answer"),  # a label says nothing without choices
        ({"question": " ", "answer": "a"}, "line 1: column 'question' is empty"),
        ({"question": "q", "answer": None}, "line 1: column 'answer' is empty"),
        ({"question": "q", "answer": 3}, "holds a int, not a text"),
        ({"question": "q", "answer": []}, "holds no answer"),
        ({"question": "q", "choices": ["a", "b"], "answer": "C"}, "answer is 'C', not one of the choices"),
        ({"question": "q", "choices": ["a", "b"], "answer": 2}, "its label (A, B) or its index from 0 to 1"),
    ],
)
def test_wrong_rows_are_named(row, message, tmp_path):
    path = rows(tmp_path / "pairs.jsonl", row)
    with pytest.raises(ValueError, match="pairs.jsonl") as error:
        read_qa(path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pairs.jsonl", '{"question": "q", "answer": "a"}\n{"question"\n', "pairs.jsonl, line 2: not valid JSON"),
        ("pairs.jsonl", "", "holds no rows"),
        ("pairs.csv", "question,answer\nq,a\nq\n", "pairs.csv, line 3: fewer cells than the 2 columns of the header"),
        ("pairs.csv", "question,answer\nq,a,b\n", "pairs.csv, line 2: more cells"),
        ("pairs.csv", 'question,answer\nq,"a\n', "not valid CSV"),
        ("pairs.csv", b"question,answer\nq,\xff\n", "not valid UTF-8"),
        ("pairs.tsv", "question\tanswer\n", "holds no rows"),
        ("pairs.xlsx", "question\tanswer\n", "cannot read this kind of file"),
    ],
)
def test_broken_files_are_named(name, text, message, tmp_path):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match="pairs") as error:
        read_qa(tmp_path / name)
    assert message in str(error.value)


def test_a_wrong_mapping_is_named(tmp_path):
    path = rows(tmp_path / "pairs.jsonl", {"question": "q", "answer": "a"})
    with pytest.raises(ValueError, match="'queston' is none of question, answer"):  # typos: ignore
        read_qa(path, columns={"queston": "q"})  # typos: ignore
    with pytest.raises(ValueError, match="there is no column 'frage'; the columns are question, answer"):
        read_qa(path, columns={"question": "frage"})
    with pytest.raises(FileNotFoundError):
        read_qa(tmp_path / "none.jsonl")


def test_folders_and_beir(tmp_path):
    (tmp_path / "one").mkdir()
    rows(tmp_path / "one" / "test.jsonl", {"question": "q", "answer": "a"})
    assert plain(read_qa(tmp_path / "one")) == [("q", "a", ())]
    beir = tmp_path / "beir"
    beir.mkdir()
    rows(beir / "corpus.jsonl", {"_id": "d", "title": "t", "text": "a"})
    rows(beir / "queries.jsonl", {"_id": "q", "text": "asked"})
    (beir / "qrels.train.tsv").write_text("q\td\t1\n")
    assert plain(read_qa(beir)) == [("asked", "t a", ())]


def test_a_cell_of_deeply_nested_json_is_a_text(tmp_path):
    deep = "[" * 100_000
    (tmp_path / "a.csv").write_text(f"question,answer,negatives\nWho?,A,{deep}\n")
    (pair,) = read_qa(tmp_path / "a.csv")
    assert pair.negatives == (deep,)
