"""Which written questions are kept: rules on their words, and a round trip through a search.

A question is rejected for the first of these reasons.

| reason | rule |
|---|---|
| `empty` | it has no letter and no digit |
| `cut` | the writer reached its limit of tokens within it |
| `copy` | `COPY_WORDS` or more, and more than `COPIED` of all its words, stand in its passage in one row |
| `language` | its letters are mostly of another script, or more of its words are stop words of another language |
| `duplicate` | an earlier question that passes the rules above has the same words |
| `not found` | its passage is not among the first ten of the search; of fewer than 100 passages, the first tenth |
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from embrew.adapting.preparation.matching import text_key, words
from embrew.adapting.questions.writers import Written
from embrew.data.fingerprints import normalised
from embrew.progress import is_chosen
from embrew.ranking import top
from embrew.text_encoder import TextEncoder, encode_options, unit_vectors

DEPTH, DEPTH_SHARE = 10, 10  # ranks in which a question has to find its passage: this many, or one in ten of few
COPIED = 0.6  # share of a question's words that its passage may have in one row
COPY_WORDS = 5  # shorter rows are no copy
LETTERS_OF_WORD = 2  # in scripts without spaces, where each letter counts as a word
UNSPACED_SCRIPTS = ("CJK", "THAI", "LAO", "MYANMAR", "KHMER")
QUERIES = 256  # searched at once
REASONS = ("empty", "cut", "copy", "language", "duplicate", "not found")
STOP_WORDS = {
    "English": "the of and to in is are was what how which who when where why does did do it that for with on by from",
    "German": "der die das und ist sind war was wie welche wer wann wo warum wird nicht ein eine für mit von auf den",
    "French": "le la les et est sont était que quel quelle comment qui quand où pourquoi des un une pour avec sur du",
    "Spanish": "el la los las y es son era qué cómo cuál quién cuándo dónde por un una para con del en se su",
    "Italian": "il lo gli e è sono era che come quale chi quando dove perché un una per con del della di nel si",
    "Portuguese": "o os as e é são era que como qual quem quando onde por um uma para com do da em no na não se",
    "Dutch": "de het een en is zijn was wat hoe welke wie wanneer waar waarom voor met van op niet door naar",
    "Russian": "и в на не что как какой какие кто когда где почему это для с по из был является",
    "Ukrainian": "і в на не що як який які хто коли де чому це для з по із був є",
}
"""Frequent words of a few languages that share a script; languages without an entry are told by script only."""
_STOP_WORDS = {name: frozenset(text.split()) for name, text in STOP_WORDS.items()}


class Searcher(Protocol):
    """A search over passages: `BM25`, or `VectorSearch`."""

    def top(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores and rows of each query's `k` best passages, `(queries, k)` each."""


class VectorSearch:
    """The cosines of an encoder's vectors of passages and of queries."""

    def __init__(self, encoder: TextEncoder, passages: Sequence[str]) -> None:
        self.encoder = encoder
        self.options = encode_options(encoder, show_progress_bar=is_chosen())
        vectors = encoder.encode_document(list(passages), **self.options)
        self.passages = unit_vectors(vectors, what="passages", texts=passages)

    def top(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the cosines and rows of each query's `k` nearest passages."""
        vectors = unit_vectors(self.encoder.encode_query(list(queries), **self.options), what="questions")
        return top(vectors @ self.passages.T, k)


@dataclass(frozen=True)
class Question:
    """A written question.

    Attributes:
        text: the question.
        passage: number of its passage.
        reason: why it is rejected; None: it is kept.
        rank: rank of its passage in the search, from 1; None: not found, or not searched.
        score: score of its passage there.
    """

    text: str
    passage: int
    reason: str | None
    rank: int | None = None
    score: float | None = None


def check_questions(
    passages: Sequence[str], written: Sequence[Sequence[Written]], open_search: Callable[[], Searcher] | None
) -> list[Question]:
    """Return all written questions, each kept or with the reason of its rejection.

    Args:
        passages: the passages that are searched.
        written: questions of the first passages, or of all.
        open_search: opens the search over `passages`; None: nothing is searched.
    """
    seen: set[str] = set()
    questions = []
    for number, of_passage in enumerate(written):
        for question in of_passage:
            reason = reason_by_words(question, passages[number])
            if reason is None and text_key(question.text) in seen:
                reason = "duplicate"
            if reason is None:
                seen.add(text_key(question.text))
            questions.append(Question(question.text, number, reason))
    return questions if open_search is None else list(_searched(questions, passages, open_search()))


def _searched(questions: Sequence[Question], passages: Sequence[str], search: Searcher) -> Iterator[Question]:
    """Yield the questions with rank and score; a passage with the same text is as good."""
    keys = [normalised(passage) for passage in passages]
    to_search = [question for question in questions if question.reason is None]
    depth = min(DEPTH, math.ceil(len(passages) / DEPTH_SHARE))
    results: dict[str, tuple[int | None, float | None]] = {}
    for start in range(0, len(to_search), QUERIES):
        batch = to_search[start : start + QUERIES]
        scores, rows = search.top([question.text for question in batch], depth)
        for question, own_scores, own_rows in zip(batch, scores.tolist(), rows.tolist(), strict=True):
            ranks = [
                (rank, score)
                for rank, (score, row) in enumerate(zip(own_scores, own_rows, strict=True), start=1)
                if score > 0 and keys[row] == keys[question.passage]
            ]
            results[question.text] = ranks[0] if ranks else (None, None)
    for question in questions:
        if question.reason is not None:
            yield question
            continue
        rank, score = results[question.text]
        yield Question(question.text, question.passage, None if rank else "not found", rank, score)


def reason_by_words(question: Written, passage: str) -> str | None:
    """Return why a question is rejected by its words alone; None: it is not."""
    if not words(question.text):
        return "empty"
    if not question.is_whole:
        return "cut"
    if is_copy(question.text, passage):
        return "copy"
    return None if same_language(question.text, passage) else "language"


def is_copy(question: str, passage: str) -> bool:
    """Return whether a question's longest row of words that its passage has too is long, as stated above.

    >>> passage = "The treaty was signed in the old town hall in 1494."
    >>> is_copy("Was it signed in the old town hall?", passage), is_copy("Where was the treaty signed?", passage)
    (True, False)
    """
    question_words, passage_words = words(question), words(passage)
    row = longest_row(question_words, passage_words)
    least = COPY_WORDS * (LETTERS_OF_WORD if script(question) in UNSPACED_SCRIPTS else 1)
    return row >= least and row > COPIED * len(question_words)


def longest_row(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the number of words of the longest row that both have.

    >>> longest_row("a b c d".split(), "x b c d a".split())
    3
    """
    longest, before = 0, [0] * (len(second) + 1)
    for word in first:
        row = [0, *(before[i] + 1 if word == other else 0 for i, other in enumerate(second))]
        longest, before = max(longest, *row), row
    return longest


def same_language(question: str, passage: str) -> bool:
    """Return whether script and stop words of a question are those of its passage, as far as they tell.

    Of a passage, the language is the one with most stop words, where one has more than all others; the question must
    not have more stop words of another language than of that one.

    >>> same_language("Was ist das?", "It is what it was."), same_language("What is it?", "It is what it was.")
    (False, True)
    """
    scripts = script(question), script(passage)
    if None not in scripts and scripts[0] != scripts[1]:
        return False
    (language, count), (_, next_count) = _stop_words(passage).most_common(2)
    if count == next_count:
        return True
    question_stop_words = _stop_words(question)
    return question_stop_words[language] >= max(question_stop_words.values())


def script(text: str) -> str | None:
    """Return the script of most letters of a text, by their Unicode names; None: it has no letters.

    >>> script("слово"), script("a word"), script("12")
    ('CYRILLIC', 'LATIN', None)
    """
    counts = Counter(_script_of(letter) for letter in text[:2000] if letter.isalpha())
    return counts.most_common(1)[0][0] if counts else None


@lru_cache(maxsize=4096)
def _script_of(letter: str) -> str:
    name = unicodedata.name(letter, "").partition(" ")[0].partition("-")[0]
    return "CJK" if name in ("HIRAGANA", "KATAKANA") else name  # which Japanese mixes


def _stop_words(text: str) -> Counter[str]:
    """Return the number of stop words of each language in a text."""
    counts = Counter(words(text))
    return Counter({name: sum(counts[word] for word in listed) for name, listed in _STOP_WORDS.items()})


def rejections(questions: Sequence[Question]) -> dict[str, Any]:
    """Return the number of rejected questions by reason, without zeros."""
    counts = Counter(question.reason for question in questions)
    return {reason: counts[reason] for reason in REASONS if counts[reason]}
