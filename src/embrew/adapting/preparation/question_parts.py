"""Parts of questions, which identify a question in a text that does not hold all of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from embrew.adapting.preparation.matching import LOOKUP_WORDS, text_key, words
from embrew.data.documents import split_sentences

MIN_CHARACTERS = 30  # characters from which a match of an answer, or of a part of a question, is not by chance
RUN_WORDS = 13  # words in a row that are a part, across sentences too
MAX_QUESTIONS = 3  # a part of more questions than this is a common phrase and identifies none
MIN_QUESTION_WORDS = 5  # minimum words of a held-out question that is looked for in other questions


def is_long(text: str) -> bool:
    """Return whether a text is so long that finding it in another text is not by chance."""
    return len(text_key(text)) >= MIN_CHARACTERS


def parts_of(questions: Iterable[str]) -> dict[str, set[str]]:
    """Return the questions of each part: sentences (`LOOKUP_WORDS` or more) and runs of `RUN_WORDS`, as keys.

    Parts shorter than `MIN_CHARACTERS`, and those of more than `MAX_QUESTIONS` questions, are left out.
    """
    questions_of: dict[str, set[str]] = defaultdict(set)
    for question in {text_key(question): question for question in questions}.values():
        sentences = [
            text_key(sentence) for sentence in split_sentences(question) if len(words(sentence)) >= LOOKUP_WORDS
        ]
        all_words = words(question)
        runs = (" ".join(all_words[i : i + RUN_WORDS]) for i in range(len(all_words) - RUN_WORDS + 1))
        for part in (*sentences, *runs):
            if len(part) >= MIN_CHARACTERS:
                questions_of[part].add(question)
    return {part: askers for part, askers in questions_of.items() if len(askers) <= MAX_QUESTIONS}


class PartMatcher:
    """Check whether a text is a part of one of several others, word by word and `MIN_CHARACTERS` long.

    Args:
        texts: the whole texts.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        long = [text for text in texts if is_long(text)]
        runs = (words(text) for text in long)
        self._runs = {run[i : i + LOOKUP_WORDS] for run in runs for i in range(len(run) - LOOKUP_WORDS + 1)}
        self._long = " \n ".join(["", *map(text_key, long), ""])

    def __call__(self, text: str) -> bool:
        """Return whether `text` is a part of one of them."""
        start = words(text)[:LOOKUP_WORDS]
        return (
            is_long(text) and (len(start) < LOOKUP_WORDS or start in self._runs) and f" {text_key(text)} " in self._long
        )
