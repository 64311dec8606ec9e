"""SQuAD's normalisation, worked by hand."""

import pytest

from embrew.evaluation.kinds.rag import can_be_found, contains_answer, exact_match, normalise


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("  an   apple,\ta day ", "apple day"),
        ("U.S.", "us"),  # punctuation goes, and leaves no blank
        ("Saint-Denis", "saintdenis"),
        ("A.", ""),  # punctuation before articles
        ("theatre and Anna", "theatre and anna"),  # articles are whole words
        ("$12", "12"),
        ("1973–1974", "1973–1974"),  # only ASCII punctuation, as in the script
        ("Émile", "émile"),
    ],
)
def test_normalising(text, expected):
    assert normalise(text) == expected


def test_exact_match_needs_all_of_one_answer():
    assert exact_match("the Denver Broncos.", ["Carolina Panthers", "Denver Broncos"])
    assert not exact_match("Denver", ["Denver Broncos"])
    assert not exact_match("It was the Denver Broncos", ["Denver Broncos"])
    assert not exact_match("", ["Denver Broncos"])


def test_an_answer_is_found_as_whole_words():
    text = "In 1910, the Army (of the U.S.) had 12 generals."
    assert contains_answer(text, ["the U.S."])
    assert contains_answer(text, ["nobody", "Generals"])
    assert contains_answer(text, ["army of us"])  # articles and brackets between the words do not count
    assert not contains_answer(text, ["10"])
    assert not contains_answer(text, ["general"])
    assert not contains_answer(text, ["the", "!"])  # nothing is left of them
    assert contains_answer("from 1973–1974", ["1973"])
    assert not contains_answer(text, [".*"])  # no pattern


def test_yes_and_no_are_in_no_context():
    assert [can_be_found(answers) for answers in (["Yes"], ["no."], ["the"], ["yes", "Norway"])] == [
        False,
        False,
        False,
        True,
    ]
