"""Held-out questions and answers, and what of the training data holds one of them.

- A question of 4 words or more counts as held by a passage or an answer that contains it word by word; a shorter one by
  what contains it with its question mark, or has it as a line, an item of a list or a sentence. A question that is
  trained on has to be it.
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

ALIKE = 30  # characters from which on an answer in another text is no chance


def is_long(text: str) -> bool:
    """Whether a text is long enough that it does not stand in another one by chance."""
    return len(key(text)) >= ALIKE


class HeldOut:
    """The questions and the right answers that nothing may be trained on.

    Args:
        pairs: held-out pairs.
    """

    def __init__(self, pairs: Sequence[QA]) -> None:
        self.questions = {key(pair.question) for pair in pairs}
        self._answers = {key(pair.answer) for pair in pairs if not is_long(pair.answer)}
        self._asked = Questions(pair.question for pair in pairs)
        long = [pair.answer for pair in pairs if is_long(pair.answer)]
        self._in_answer = Finder(long, least=1)
        runs = (words(answer) for answer in long)
        self._runs = {run[i : i + START] for run in runs for i in range(len(run) - START + 1)}
        self._long = " \n ".join(["", *map(key, long), ""])

    def asks(self, text: str) -> bool:
        """Whether a text that is read as a document holds a held-out question."""
        return bool(self._asked(text))

    def answers_in(self, text: str) -> bool:
        """Whether a text holds a held-out answer, or is a part of one."""
        if self._in_answer(text) or (self._answers and self._answers & items(text)):
            return True
        start = words(text)[:START]
        return is_long(text) and (len(start) < START or start in self._runs) and f" {key(text)} " in self._long

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
        if key(pair.question) in held.questions or held.answers_in(pair.question) or held.why(pair.answer):
            counts["pairs_dropped"] += 1
            continue
        negatives = tuple(text for text in pair.negatives if not held.why(text))
        counts["negatives_dropped"] += len(pair.negatives) - len(negatives)
        kept_pairs.append(replace(pair, negatives=negatives))
    return Clean(kept_passages, kept_pairs, counts)
