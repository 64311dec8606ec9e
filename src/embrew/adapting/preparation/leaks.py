"""Remove training data that holds a held-out question or answer, and look for it again in the files before training.

- A passage or answer holds a question of 4 words or more if it contains it word by word; a shorter one if it contains
  it with its question mark, or has it as a line, an item of a list or a sentence.
- It also holds a question if it is a part of it (30 characters or more), or contains one of its sentences or 13 of its
  words in a row (`question_parts`).
- A training question holds a held-out one if it equals it, contains it (5 words or more) or such a part, or is a part
  of it.
- A text holds an answer of 8 words or more if it contains it word by word, or is a part of it of 30 characters or more.
  A shorter answer, such as "yes", a number or a name, is the answer of many questions and is not looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from embrew.adapting.preparation.matching import (
    LOOKUP_WORDS,
    MIN_QUESTION_WORDS,
    PartMatcher,
    QuestionFinder,
    TextFinder,
    identifies,
    question_parts,
    text_key,
    words,
)
from embrew.analysis.qa import QA
from embrew.data.beir import Document, read_beir
from embrew.data.formats import read_file
from embrew.settings.validation import shortened

LOGGED = 80  # characters of a text in an error


class HeldOutTexts:
    """Held-out questions and right answers, and checks for them in texts.

    Args:
        pairs: held-out pairs.
    """

    def __init__(self, pairs: Sequence[QA]) -> None:
        questions = [pair.question for pair in pairs]
        self._questions = set(map(text_key, questions))
        self._question_finder = QuestionFinder(questions)
        self._long_questions = TextFinder(questions, least=MIN_QUESTION_WORDS)
        self._parts_of_questions = TextFinder(question_parts(questions))
        self._within_question = PartMatcher(questions)
        long = [pair.answer for pair in pairs if identifies(pair.answer)]
        self._answers = TextFinder(long, least=1)
        self._within_answer = PartMatcher(long)

    def holds_question(self, text: str) -> bool:
        """Return whether a document holds a held-out question or a part of one."""
        return bool(self._question_finder(text) or self._parts_of_questions(text)) or self._is_part(text)

    def repeats_question(self, question: str) -> bool:
        """Return whether a question equals a held-out one, contains one or a part of one, or is a part of one."""
        holds = self._long_questions(question) or self._parts_of_questions(question)
        return text_key(question) in self._questions or bool(holds) or self._is_part(question)

    def question_leaks(self, question: str) -> bool:
        """Return whether a question of the training data holds a held-out question or answer."""
        return self.repeats_question(question) or self.holds_answer(question)

    def holds_answer(self, text: str) -> bool:
        """Return whether a text holds a held-out answer of `IDENTIFYING_WORDS` or more, or is a part of one."""
        return bool(self._answers(text)) or self._within_answer(text)

    def _is_part(self, text: str) -> bool:
        return len(words(text)) >= LOOKUP_WORDS and self._within_question(text)

    def leak_in(self, text: str) -> Literal["question", "answer"] | None:
        """Return what a document holds: `question`, `answer` or None."""
        return "question" if self.holds_question(text) else "answer" if self.holds_answer(text) else None


@dataclass(frozen=True)
class CleanData:
    """Training data without held-out questions and answers, and counts of what was removed."""

    passages: list[Document]
    pairs: list[QA]
    counts: Mapping[str, int]


def without_held_out(passages: Iterable[Document], pairs: Iterable[QA], held_out: Sequence[QA]) -> CleanData:
    """Remove passages, pairs and negatives that hold a held-out question or answer."""
    held = HeldOutTexts(held_out)
    counts = dict.fromkeys(("passages_with_question", "passages_with_answer", "pairs_dropped", "negatives_dropped"), 0)
    kept_passages, kept_pairs = [], []
    for passage in passages:
        leak = held.leak_in(passage.content) or (held.leak_in(passage.text) if passage.title else None)
        if leak:
            counts[f"passages_with_{leak}"] += 1
        else:
            kept_passages.append(passage)
    for pair in pairs:
        if held.question_leaks(pair.question) or held.leak_in(pair.answer):
            counts["pairs_dropped"] += 1
            continue
        negatives = tuple(text for text in pair.negatives if not held.leak_in(text))
        counts["negatives_dropped"] += len(pair.negatives) - len(negatives)
        kept_pairs.append(replace(pair, negatives=negatives))
    return CleanData(kept_passages, kept_pairs, counts)


def check_leaks(folder: Path, rows: Iterable[Mapping[str, Any]] | None = None) -> dict[str, int]:
    """Look for the questions and right answers of test and dev in training data.

    Args:
        folder: from `prepare_data`.
        rows: of training data; None: those of the folder's files, which are read again from disk.

    Returns:
        Numbers of `questions` and `answers` (of `IDENTIFYING_WORDS` or more) that were looked for, and of `texts`.

    Raises:
        ValueError: a text holds one.
    """
    pairs = [QA(question, answer) for question, answer in _held_out_pairs(folder)]
    held, texts, leaked = HeldOutTexts(pairs), 0, list[str]()
    if rows is None:
        rows = chain(read_prepared_rows(folder / "pairs.jsonl"), read_prepared_rows(folder / "passages.jsonl"))
    for row in rows:
        for column, value in row.items():
            of_row = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
            if column != "document":  # a passage's id
                texts += len(of_row)
                holds = held.question_leaks if column == "query" else held.leak_in
                leaked += [text for text in of_row if holds(text)]
    if leaked:
        raise ValueError(
            f"{folder}: {len(leaked)} texts of the training data hold held-out questions or answers, for example "
            f"{shortened(leaked[0], LOGGED)!r}; nothing was trained. Leave out that data, or choose another folder"
        )
    answers = {pair.answer for pair in pairs if identifies(pair.answer)}
    return {"questions": len({pair.question for pair in pairs}), "answers": len(answers), "texts": texts}


def _held_out_pairs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the held-out questions, each with a right answer."""
    for split in ("test", "dev"):
        if (folder / split).is_dir():
            data = read_beir(folder / split, split)
            texts = {document.id: document.content for document in data.corpus}
            for query, grades in data.qrels.items():
                yield from ((data.queries[query], texts[name]) for name in grades)


def read_prepared_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of prepared data, which may be empty."""
    if path.stat().st_size:
        yield from (record.values for record in read_file(path))
