"""Held-out questions and answers, and what of the training data holds one of them.

- A question of 4 words or more counts as held by a passage or an answer that contains it word by word; a shorter one by
  what contains it with its question mark, or has it as a line, an item of a list or a sentence.
- So does a part of a question: a text of 30 characters or more that is one, or that contains one of its sentences or 13
  of its words in a row (`parts`).
- A question that is trained on has to be it, contain it (5 words or more) or be a part of it.
- An answer of 30 characters or more counts as held by any text that contains it word by word, or that is a part of it
  of such a length; a shorter one by a text that is it, or that has it as a line or an item of a list (a choice).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from embrew.data.documents import Document
from embrew.data.qa import QA
from embrew.domain.matching import START, Finder, Questions, items, key, words
from embrew.domain.question_parts import IN_QUERY, Within, is_long, parts_of


class HeldOut:
    """The questions and the right answers that nothing may be trained on.

    Args:
        pairs: held-out pairs.
    """

    def __init__(self, pairs: Sequence[QA]) -> None:
        questions = [pair.question for pair in pairs]
        self._questions = set(map(key, questions))
        self._asked = Questions(questions)
        self._in_question = Finder(questions, least=IN_QUERY)
        self._parts = Finder(parts_of(questions))
        self._part_of_question = Within(questions)
        long = [pair.answer for pair in pairs if is_long(pair.answer)]
        self._answers = {key(pair.answer) for pair in pairs if not is_long(pair.answer)}
        self._in_answer = Finder(long, least=1)
        self._part_of_answer = Within(long)

    def asks(self, text: str) -> bool:
        """Whether a text that is read as a document holds a held-out question or a part of one."""
        return bool(self._asked(text) or self._parts(text)) or self._is_part(text)

    def asked_by(self, question: str) -> bool:
        """Whether a question is a held-out one, contains one or is a part of one."""
        return key(question) in self._questions or bool(self._in_question(question)) or self._is_part(question)

    def answers_in(self, text: str) -> bool:
        """Whether a text holds a held-out answer, or is a part of one."""
        return bool(self._in_answer(text) or self._answers & items(text)) or self._part_of_answer(text)

    def _is_part(self, text: str) -> bool:
        return len(words(text)) >= START and self._part_of_question(text)

    def why(self, text: str) -> Literal["question", "answer"] | None:
        """What a text that is read as a document holds, or None."""
        return "question" if self.asks(text) else "answer" if self.answers_in(text) else None


@dataclass(frozen=True)
class Clean:
    """Training data that holds nothing held out, and counts of what was taken out."""

    passages: list[Document]
    pairs: list[QA]
    counts: Mapping[str, int]


def without_held_out(passages: Iterable[Document], pairs: Iterable[QA], held_out: Sequence[QA]) -> Clean:
    """Take passages, pairs and negatives out of training data that hold a held-out question or answer."""
    held = HeldOut(held_out)
    counts = dict.fromkeys(("passages_with_question", "passages_with_answer", "pairs_dropped", "negatives_dropped"), 0)
    kept_passages, kept_pairs = [], []
    for passage in passages:
        why = held.why(passage.content) or (held.why(passage.text) if passage.title else None)
        if why:
            counts[f"passages_with_{why}"] += 1
        else:
            kept_passages.append(passage)
    for pair in pairs:
        if held.asked_by(pair.question) or held.answers_in(pair.question) or held.why(pair.answer):
            counts["pairs_dropped"] += 1
            continue
        negatives = tuple(text for text in pair.negatives if not held.why(text))
        counts["negatives_dropped"] += len(pair.negatives) - len(negatives)
        kept_pairs.append(replace(pair, negatives=negatives))
    return Clean(kept_passages, kept_pairs, counts)
