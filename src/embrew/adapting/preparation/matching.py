"""Find texts, and parts of questions, in another text, ignoring case, white space, punctuation and markup."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache

from embrew.data.documents import split_sentences
from embrew.data.fingerprints import normalised
from embrew.ranking import UNSPACED

LOOKUP_WORDS = 4  # words by which a contained text is looked up; fewer match by chance
# Words from which an answer identifies its pair. In SQuAD, 74 % of the answers of 1 word, 22 % of 3, 6 % of 5 and 2 %
# of 8 or more words are the answer of another question too (benchmarks/shared_answers.py).
IDENTIFYING_WORDS = 8
_WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
_WORD_OR_MARK = re.compile(rf"{_WORD.pattern}|[?؟]")  # NFKC makes ？ a question mark
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_ITEM = re.compile(r"\n|(?:^|\s)\(?[A-Za-z0-9]{1,2}[.):](?=\s)|(?:^|\s)[-*•#>|]+(?=\s)")
_LABEL = re.compile(  # what follows the last item of a list where lines are joined: "Answer: D", "Correct answer: D"
    r"(?<!\S)(?=[*_(\[]*(?:[^\W\d_]+|(?!\d)[A-Z]\w*(?:\s+[^\W\d_]+){1,2})[*_]*:(?:[*_)\]\s]|$))"
)
_SEGMENT = re.compile(rf"{_ITEM.pattern}|[.?!:;|()。！？；：](?=\s|$)|[。！？；：]")
MIN_CHARACTERS = 30  # characters from which a match of an answer, or of a part of a question, is not by chance
RUN_WORDS = 13  # words in a row that are a part, across sentences too
MAX_QUESTIONS = 3  # a part of more questions than this is a common phrase and identifies none
MIN_QUESTION_WORDS = 5  # minimum words of a held-out question that is looked for in other questions


@lru_cache(maxsize=4096)  # several checks in a row need the same text
def words(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case, without punctuation; single characters in scripts without spaces."""
    return tuple(_WORD.findall(_plain(text)))


@lru_cache(maxsize=4096)
def text_key(text: str) -> str:
    """Return the key by which texts are compared: the words, or the text itself if it has none."""
    return " ".join(words(text)) or normalised(text)


def identifies(answer: str) -> bool:
    """Return whether an answer is so long that two pairs with it are about the same; `yes` or a name is not."""
    return len(words(answer)) >= IDENTIFYING_WORDS


def items(text: str) -> set[str]:
    """Return the keys of a text, its lines and the items of its lists, such as choices listed as A), B).

    An item also ends where a label begins, such as `Answer:`, and another begins after it.
    """
    parts = [part for part in _ITEM.split(text) if part.strip()]
    cut = (piece for part in parts for piece in _between_labels(part))
    return {text_key(text), *map(text_key, parts), *(text_key(piece) for piece in cut if piece.strip())}


def _between_labels(item: str) -> Iterator[str]:
    labels = [match.start() for match in _LABEL.finditer(item)]
    for start, end in zip([0, *labels], [*labels, len(item)], strict=True):
        begin = item.rfind(":", 0, start) + 1  # the words of a label may belong to the item
        yield item[begin:start]
        yield item[item.find(":", start) + 1 : end] if start in labels else item[start:end]


def segments(text: str) -> set[str]:
    """Return `items`, and the keys of sentences and clauses."""
    return items(text) | {text_key(part) for part in _SEGMENT.split(text) if part.strip()}


class TextFinder:
    """Find which of many texts are in a text, in time that does not depend on their number.

    Args:
        texts: the texts to find; those with fewer words than `least` are left out.
        least: minimum number of words.
        marks: whether question marks count as words.
    """

    def __init__(self, texts: Iterable[str], *, least: int = LOOKUP_WORDS, marks: bool = False) -> None:
        self._marks = marks
        self._by_start: dict[tuple[str, ...], dict[tuple[str, ...], str]] = defaultdict(dict)
        for text in texts:
            sequence = self._words(text)
            if len(sequence) >= max(least, 1):
                self._by_start[sequence[:LOOKUP_WORDS]][sequence] = text_key(text)
        self._lengths = sorted({len(start) for start in self._by_start})

    def __call__(self, text: str) -> set[str]:
        """Return the keys of those in `text`."""
        if not self._by_start:
            return set()
        text_words = self._words(text)
        return {
            name
            for length in self._lengths
            for i, start in enumerate(zip(*(text_words[k:] for k in range(length)), strict=False))
            if start in self._by_start
            for sought, name in self._by_start[start].items()
            if text_words[i : i + len(sought)] == sought
        }

    def _words(self, text: str) -> tuple[str, ...]:
        return tuple(_WORD_OR_MARK.findall(_plain(text))) if self._marks else words(text)


class QuestionFinder:
    """Find which of many questions are in a text.

    A question of `LOOKUP_WORDS` or more is found word by word. One of two or three words is found with its question
    mark; all short ones are also found as a line, an item of a list or a sentence (`segments`).

    Args:
        questions: the questions to find.
    """

    def __init__(self, questions: Iterable[str]) -> None:
        different = dict.fromkeys(questions)
        short = [question for question in different if len(words(question)) < LOOKUP_WORDS]
        self._long = TextFinder(different)
        self._marked = TextFinder(
            (question for question in short if _plain(question).rstrip().endswith(("?", "؟"))), least=3, marks=True
        )
        self._short = {text_key(question) for question in short}

    def __call__(self, text: str) -> set[str]:
        """Return the keys of those in `text`."""
        keys = self._long(text) | self._marked(text)
        return keys | (self._short & segments(text)) if self._short else keys


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()


def is_long(text: str) -> bool:
    """Return whether a text is so long that finding it in another text is not by chance."""
    return len(text_key(text)) >= MIN_CHARACTERS


def question_parts(questions: Iterable[str]) -> dict[str, set[str]]:
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
