"""Tevatron's passages and ms-swift's messages, as their own documentation shows them."""

import re

import pytest

from embrew.data.canonical import Converter
from embrew.data.columns import match, matched_columns
from embrew.data.formats import Record


def rows(values, kind="pairs", **options):
    layout = match(values, kind, chosen=options.pop("chosen", ()))
    return Converter(layout, kind, **options)(Record(values, "file", 1, "line"))


def said(text, system=None):
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": text}]


TEVATRON = {
    "query_id": "7",
    "query": "q",
    "positive_passages": [{"docid": "1", "title": "T", "text": "p"}, {"docid": "2", "title": "", "text": "r"}],
    "negative_passages": [{"docid": "3", "text": "n"}],
}


def test_tevatron():
    shared = {"query": "q", "negatives": ["n"], "instruction": None}
    assert rows(TEVATRON) == [{**shared, "positive": "T p"}, {**shared, "positive": "r"}]
    assert rows({**TEVATRON, "negative_passages": None})[0]["negatives"] == []
    assert rows(TEVATRON, "candidates") == [{"query": "q", "positive": ["T p", "r"], "negative": ["n"]}]


def test_swift_pairs():
    row = {"messages": said("q"), "positive_messages": [said("p")], "negative_messages": [said("n"), said("m")]}
    assert rows(row) == [{"query": "q", "positive": "p", "negatives": ["n", "m"], "instruction": None}]
    assert rows({"Messages": said("q"), "positive_messages": [said("p")]})[0]["negatives"] == []
    asked = {**row, "messages": said("q", "Find it.")}
    assert rows(asked)[0]["instruction"] == "Find it. "  # ms-swift's prompt is `{system} {user}`
    assert rows(asked, instruction="given")[0]["instruction"] == "given"
    assert matched_columns(row, match(row, "pairs")) == (
        "columns query from messages; positive from positive_messages; negatives from negative_messages; "
        "instruction from messages of the system"
    )


def test_swift_labels():
    row = {"messages": said("a"), "positive_messages": [said("b")], "label": 0.8}
    assert rows(row, "scored") == [{"sentence1": "a", "sentence2": "b", "score": 0.8}]
    one = {**row, "label": 1}
    assert rows(one, "labelled_pairs") == [{"sentence1": "a", "sentence2": "b", "label": "1"}]
    assert rows(one, chosen=["label"])[0]["positive"] == "b"
    assert rows({"messages": said("a"), "label": "x"}, "labelled") == [{"text": "a", "label": "x"}]
    assert rows({"messages": said("a")}, "text") == [{"text": "a"}]


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ({**TEVATRON, "positive_passages": ["p"]}, "pairs", "holds 'p', not a passage; write"),
        ({**TEVATRON, "positive_passages": [{"docid": "1"}]}, "pairs", "not a passage"),
        ({**TEVATRON, "negative_passages": {"text": "n"}}, "pairs", "holds a dict, not a list"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "text", "trained on one user message"),
        ({"messages": [*said("a"), *said("b")]}, "text", "trained on one user message"),
        ({"messages": "a"}, "text", "trained on one user message"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text", "trained on one user message"),
        ({"messages": said("<image>what?")}, "text", "holds <image>; embrew reads text only"),
        ({"messages": said("a", "do")}, "text", "text rows have no instruction"),
        ({"messages": said("a"), "positive_messages": [said("b", "do")]}, "pairs", "set encoder.prompts.document"),
        ({"messages": said("a"), "positive_messages": []}, "pairs", "every row needs a positive"),
        ({"messages": said("a"), "positive_messages": [said("b")] * 2, "label": 1}, "scored", "holds a list"),
    ],
)
def test_other_forms(values, kind, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        rows(values, kind)
    assert str(error.value).startswith("file, line 1: ")


def test_messages_that_are_not_read_may_have_any_form():
    assert rows({"text": "t", "messages": "log"}, "text") == [{"text": "t"}]
