import re

import pytest

from embrew.data.canonical import Converter, empty_column
from embrew.data.columns import ACCEPTED, match, matched_columns
from embrew.data.formats import Record


def rows(values, kind="pairs", mapping=None, **options):
    return Converter(match(values, kind, mapping=mapping), kind, **options)(Record(values, "file", 1, "line"))


def pair(negatives=(), instruction=None, positive="p"):
    return {"query": "q", "positive": positive, "negatives": list(negatives), "instruction": instruction}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"query": "q", "positive": "p"}, [pair()]),
        ({"anchor": "q", "positive": "p", "negative": "n"}, [pair(["n"])]),  # Sentence-Transformers
        ({"anchor": "q", "positive": "p", "negative_2": "b", "negative_10": "c", "negative_1": "a"}, [pair("abc")]),
        ({"query": "q", "positive": "p", "negatives": ["a", "b"]}, [pair("ab")]),
        ({"query": "q", "positive": "p", "negatives": None}, [pair()]),
        ({"query": "q", "pos": ["p", "r"], "neg": ["n"]}, [pair("n"), pair("n", positive="r")]),  # FlagEmbedding
        ({"query": "q", "pos": ["p"], "neg": [], "prompt": "do", "pos_scores": [1], "type": "x"}, [pair((), "do")]),
        ({"query": "q", "positive": "p", "instruction": None, "source": "web"}, [pair()]),
        ({"Query": "q", " POSITIVE ": "p", "Negative_1": "n", "Source": "web"}, [pair(["n"])]),
        ({"Query": "q", "Pos": ["p"], "NEG": None}, [pair()]),
        ({"question": "q", "answer": "p"}, [pair()]),
        ({"query": "q", "answer": "p", "context": "c"}, [pair()]),
        ({"query": "q", "positive": "p", "answer": "a", "sentence1": "s", "sentence2": "t"}, [pair()]),
        ({"sentence1": "q", "sentence2": "p"}, [pair()]),
        ({"query": "q", "positive": "p", "negatives": ["a"], "scores": [2, 1]}, [{**pair("a"), "scores": [2.0, 1.0]}]),
        ({"query": "q", "positive": "p", "negatives": ["a"], "scores": None}, [pair("a")]),
        (
            {"query": "q", "pos": ["p", "r"], "neg": ["n"], "pos_scores": [3, 2], "neg_scores": [1]},
            [{**pair("n"), "scores": [3.0, 1.0]}, {**pair("n", positive="r"), "scores": [2.0, 1.0]}],
        ),
    ],
)
def test_layouts_of_pairs(values, expected):
    assert rows(values) == expected


def test_an_explicit_mapping_stands_over_names():
    values = {"instruction": "q", "context": "p", "target": "t"}  # here "instruction" is the question itself
    assert rows(values, mapping={"query": "instruction", "positive": "context"}) == [pair()]


def test_the_given_instruction_stands_over_the_rows():
    assert rows({"query": "q", "pos": ["p"], "prompt": "row"}, instruction="given") == [pair((), "given")]


def test_the_instruction_is_for_documents_too_where_it_is_asked_for():
    expected = {**pair((), "same"), "document_instruction": "same"}
    assert rows({"query": "q", "positive": "p"}, instruction="same", instruct="both") == [expected]
    assert rows({"query": "q", "positive": "p"}, instruct="both") == [pair()]


@pytest.mark.parametrize(
    "values",
    [
        {"positive": "p", "negatives": ["a"], "scores": [1.0]},
        {"positive": "p", "scores": [1.0, 2.0]},
        {"pos": ["p", "r"], "neg": ["n"], "pos_scores": [1], "neg_scores": [1]},
        {"pos": ["p", "r"], "scores": [1.0]},
    ],
)
def test_a_score_for_every_text(values):
    with pytest.raises(ValueError, match="file, line 1: .*give each text one"):
        rows({"query": "q", **values})


def test_text_and_scored_rows():
    assert rows({"text": "t", "source": "x"}, "text") == [{"text": "t"}]
    assert rows({"body": "t"}, "text", {"text": "body"}) == [{"text": "t"}]
    assert rows({"sentence1": "a", "sentence2": "b", "score": "3.5"}, "scored")[0]["score"] == 3.5  # as CSV has it
    scored = {"sentence1": "a", "sentence2": "b", "score": 3, "subset": 12}
    assert rows(scored, "scored") == [{"sentence1": "a", "sentence2": "b", "score": 3.0, "subset": "12"}]
    assert (
        rows({"a": "a", "sentence2": "b", "label": 1}, "scored", {"sentence1": "a", "score": "label"})[0]["score"] == 1
    )


@pytest.mark.parametrize(
    ("columns", "kind", "mapping", "message"),
    [
        (["question", "context"], "pairs", {}, "no column for 'query'; the columns found are context, question"),
        (["text", "title"], "pairs", {}, "query | anchor"),
        (["sentence1", "sentence2", "label"], "scored", {}, "no column for 'score'"),
        (["query", "anchor", "positive"], "pairs", {}, "query and anchor could both be 'query'"),
        (["Query", "query", "positive"], "pairs", {}, "Query and query could both be 'query'"),
        (["Text", "TEXT"], "text", {}, "Text and TEXT could both be 'text'"),
        (
            ["question", "answer", "sentence1", "sentence2"],
            "pairs",
            {},
            "question, answer and sentence1, sentence2 could both be query, positive; say which, e.g. columns: "
            "{query: question, positive: answer}",
        ),
        (["sentence1", "sentence2", "score"], "pairs", {}, "select these, e.g. where: {score: 1}, or take all rows"),
        (["messages", "positive_messages", "label"], "pairs", {}, "select these, e.g. where: {label: 1}"),
        (["query", "sentence2"], "pairs", {}, "no column for 'positive'"),
        (["query", "positive", "negative", "negative_1"], "pairs", {}, "could both be 'negatives'"),
        (["query", "positive", "hard_negative"], "pairs", {}, "column 'hard_negative' looks like a text"),
        (["text"], "text", {"document": "text"}, "'document' is no column of text rows; choose from text"),
        (["text"], "text", {"text": "body"}, "'body' is not there; the columns found are text"),
    ],
)
def test_unknown_columns(columns, kind, mapping, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        match(columns, kind, mapping=mapping)


def test_missing_columns_say_how_to_map():
    for kind in ACCEPTED:
        with pytest.raises(ValueError, match="Map others with columns: {canonical: column in the file}"):
            match(["nothing"], kind)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"query": None, "positive": "p"}, "file, line 1: column 'query' holds null"),
        ({"query": 3, "positive": "p"}, "column 'query' holds a int"),
        ({"query": "q", "positive": {}}, "column 'positive' holds a dict"),
        ({"query": "q", "positive": []}, "every row needs a positive"),
        ({"query": "q", "positive": "p", "negative": None}, "column 'negative' holds null"),
        ({"query": "q", "positive": "p", "negatives": ["n", None]}, "column 'negatives' holds null in its list"),
    ],
)
def test_values_that_are_no_text(values, message):
    with pytest.raises(ValueError, match=message):
        rows(values)


@pytest.mark.parametrize("score", [None, "three", "4,5", "", True, "nan", float("nan"), float("inf"), [3]])
def test_scores_are_finite_numbers(score):
    with pytest.raises(ValueError, match="column 'score' holds .*, not a finite number"):
        rows({"sentence1": "a", "sentence2": "b", "score": score}, "scored")


@pytest.mark.parametrize("row", [{"text": ""}, {"query": "q", "positive": " \n"}, {"negatives": ["n", "\u3000"]}])
def test_empty_texts(row):
    assert empty_column(row) == [*row][-1]


def test_an_instruction_may_be_empty():
    assert empty_column({"query": "q", "positive": "p", "negatives": [], "instruction": ""}) is None


def test_matched_columns_names_ignored_columns():
    columns = ["anchor", "positive", "source"]
    assert matched_columns(columns, match(columns, "pairs")) == "columns query from anchor; positive (ignored: source)"
