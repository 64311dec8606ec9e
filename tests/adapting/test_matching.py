"""Texts in texts, word by word."""

import pytest

from embrew.adapting.preparation.leaks import HeldOutTexts
from embrew.adapting.preparation.matching import QuestionFinder, TextFinder, items, text_key
from embrew.analysis.qa import QA


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What is RNA?", " what  IS “rna” ", True),
        ("**Why** _not_?", "why not", True),
        ("soft\u00adware", "software", True),
        ("ｗｉｄｅ", "wide", True),
        ("a", "b", False),
        ("+", "−", False),  # no words: the text itself
        ("e-mail", "email", False),
    ],
)
def test_what_counts_as_the_same(one, other, same):
    assert (text_key(one) == text_key(other)) == same


def test_finder_is_a_plain_search():
    """Against a search for each text, on word boundaries."""
    texts = ["the cat sat on", "cat sat on the mat", "on the", "the", "mat the cat", "xyz the cat sat on"]
    inside = "The cat: sat — on the mat; then the catalogue. MAT, the cat!"
    plain = " the cat sat on the mat then the catalogue mat the cat "
    for least in (1, 2, 4):
        expected = {text for text in texts if f" {text} " in plain and len(text.split()) >= least}
        assert TextFinder(texts, least=least)(inside) == expected
    assert len({text for text in texts if f" {text} " in plain}) == 5


@pytest.mark.parametrize(
    ("question", "text", "found"),
    [
        ("How does a heart valve close?", "Q7. How does a heart valve close? It has leaflets.", True),
        ("How does a heart valve close?", "How does a heart valve open?", False),
        ("What is RNA?", "In short: what is RNA? A chain.", True),
        ("What is RNA?", "What is RNA polymerase? An enzyme.", False),
        ("What is RNA?", "# What is RNA\n\nA chain.", True),
        ("Aspirin", "Take aspirin with water.", False),
        ("Aspirin", "1) Aspirin 2) Water", True),
        ("Why?", "It rains. Why? Because.", True),
        ("Why?", "Do you know why? Because.", False),
        ("什么是核糖核酸？", "第一章。什么是核糖核酸？它是一种分子。", True),
        ("什么是核糖核酸？", "什么是脱氧核糖核酸？", False),
        ("", "anything", False),
    ],
)
def test_questions_in_texts(question, text, found):
    assert bool(QuestionFinder([question])(text)) == found


@pytest.mark.parametrize(
    ("answer", "text", "found"),
    [
        ("yes", "Yes.", False),  # an answer of fewer than 8 words is that of many questions
        ("Seven words are still of no use", "Seven words are still of no use", False),
        ("Eight of them are enough to tell apart", "Eight of them are enough to tell apart", True),
        ("It is kept cold, and dry, and dark.", "Storage. It is kept cold and dry and dark. Always.", True),
        ("Storage: it is kept cold and dry and dark, always.", "It is kept cold, and dry, and dark.", True),
        ("Storage: it is kept cold and dry and dark, always.", "It is kept cold", False),
    ],
)
def test_long_answers_in_texts(answer, text, found):
    assert HeldOutTexts([QA("q", answer)]).holds_answer(text) == found


@pytest.mark.parametrize("text", ["Paris.", "Which city? A) Paris B) Rome", "- Rome\n- Paris\n", "B) Paris Answer: B"])
def test_items_of_lists(text):
    assert "paris" in items(text) and "paris" not in items("Paris is a city.")
