"""Parts of questions, which identify a question in a text that does not hold all of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from embrew.adapting.preparation.matching import START, key, words
from embrew.data.sentences import split_sentences

ALIKE = 30  # characters from which a match of an answer, or of a part of a question, is not by chance
RUN = 13  # words in a row that are a part, across sentences too
MANY = 3  # a part of more questions than this is a common phrase and identifies none
IN_QUERY = 5  # minimum words of a held-out question that is looked for in other questions


def is_long(text: str) -> bool:
    """Return whether a text is so long that finding it in another text is not by chance."""
    return len(key(text)) >= ALIKE


def parts_of(questions: Iterable[str]) -> dict[str, set[str]]:
    """Return the questions of each part: sentences (`START` words or more) and runs of `RUN` words, as keys.

    Parts shorter than `ALIKE` characters, and those of more than `MANY` questions, are left out.
    """
    questions_of: dict[str, set[str]] = defaultdict(set)
    for question in {key(question): question for question in questions}.values():
        sentences = [key(sentence) for sentence in split_sentences(question) if len(words(sentence)) >= START]
        all_words = words(question)
        runs = (" ".join(all_words[i : i + RUN]) for i in range(len(all_words) - RUN + 1))
        for part in (*sentences, *runs):
            if len(part) >= ALIKE:
                questions_of[part].add(question)
    return {part: askers for part, askers in questions_of.items() if len(askers) <= MANY}


class PartMatcher:
    """Check whether a text is a part of one of several others, word by word and `ALIKE` characters long.

    Args:
        texts: the whole texts.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        long = [text for text in texts if is_long(text)]
        runs = (words(text) for text in long)
        self._runs = {run[i : i + START] for run in runs for i in range(len(run) - START + 1)}
        self._long = " \n ".join(["", *map(key, long), ""])

    def __call__(self, text: str) -> bool:
        """Return whether `text` is a part of one of them."""
        start = words(text)[:START]
        return is_long(text) and (len(start) < START or start in self._runs) and f" {key(text)} " in self._long
