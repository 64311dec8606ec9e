"""Parts of questions: by which of them a text that does not hold a whole question is recognised."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from embrew.data.sentences import split_sentences
from embrew.domain.matching import START, key, words

ALIKE = 30  # characters from which on an answer, or a part of a question, in another text is no chance
RUN = 13  # words in a row that are a part, whether sentences begin or end in them or not
MANY = 3  # a part of more questions than these is a form of words that says nothing of one of them
IN_QUERY = 5  # words of a held-out question that another question may not contain


def is_long(text: str) -> bool:
    """Whether a text is long enough that it does not stand in another one by chance."""
    return len(key(text)) >= ALIKE


def parts_of(questions: Iterable[str]) -> dict[str, set[str]]:
    """Keys of sentences (`START` words or more) and runs of `RUN` words, `ALIKE` characters long, and their questions.

    Those of more than `MANY` questions are left out.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for question in {key(question): question for question in questions}.values():
        sentences = [key(one) for one in split_sentences(question) if len(words(one)) >= START]
        all_words = words(question)
        runs = (" ".join(all_words[i : i + RUN]) for i in range(len(all_words) - RUN + 1))
        for part in (*sentences, *runs):
            if len(part) >= ALIKE:
                found[part].add(question)
    return {part: of for part, of in found.items() if len(of) <= MANY}


class Within:
    """Finds texts that are a part of one of several others, word by word and `ALIKE` characters long.

    Args:
        texts: what they may be a part of.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        long = [text for text in texts if is_long(text)]
        runs = (words(text) for text in long)
        self._runs = {run[i : i + START] for run in runs for i in range(len(run) - START + 1)}
        self._long = " \n ".join(["", *map(key, long), ""])

    def __call__(self, text: str) -> bool:
        """Whether `text` is a part."""
        start = words(text)[:START]
        return is_long(text) and (len(start) < START or start in self._runs) and f" {key(text)} " in self._long
