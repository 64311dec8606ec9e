"""Questions with their answers: a BEIR folder, and a column or file of answers; whether a text has an answer.

Exact match follows SQuAD's normalisation (Rajpurkar et al., arXiv 1606.05250, section 6.1 and its evaluation script).
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embrew.data.beir import RetrievalData, record_id
from embrew.data.canonical import canonical_rows
from embrew.data.columns import Layout
from embrew.data.datasets import load
from embrew.data.formats import named, read_file
from embrew.data.reading import find_file

_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Question:
    """A question, and the texts of which each answers it."""

    id: str
    text: str
    answers: tuple[str, ...]


def read_questions(
    folder: Path, data: RetrievalData, *, answers: Path | None = None, columns: Mapping[str, str] | None = None
) -> list[Question]:
    """Return the queries of a BEIR folder with their answers.

    Args:
        data: Content of the folder.
        answers: Rows with `question`, `answers` (or `answer`) and, if questions are not unique, `context`: the text of
            the relevant document. Default: the column `answers` (or `answer`) of the queries.
        columns: Canonical column -> column in the file, for names that are not known.

    Raises:
        ValueError: there are no answers, or a query has none; names the first.
    """
    answers_of = (
        _answers_of_queries(folder, data, columns) if answers is None else _answers_of_file(data, answers, columns)
    )
    without = [query for query in data.qrels if not answers_of.get(query)]
    if without:
        source = answers or folder
        raise ValueError(
            f"{source} has no answer for {len(without)} of {len(data.qrels)} queries, the first: {without[0]!r} "
            f"({data.queries[without[0]]!r}); the file must hold each question and the text of its relevant document "
            "verbatim"
        )
    return [Question(query, data.queries[query], tuple(dict.fromkeys(answers_of[query]))) for query in data.qrels]


def _answers_of_queries(
    folder: Path, data: RetrievalData, columns: Mapping[str, str] | None
) -> dict[str, Sequence[str]]:
    file = find_file(folder, "queries")
    assert file is not None, "the folder was read before"
    wanted = (columns or {}).get("answers")
    answers: dict[str, Sequence[str]] = {}
    for record in read_file(file):
        query = record_id(record)
        if query not in data.qrels:
            continue
        column = wanted or named(record.values, "answers") or named(record.values, "answer")
        if column is None or column not in record.values:
            raise ValueError(
                f"{record.where} has no column {wanted or 'answers'}; found {', '.join(record.values)}. Add it, or "
                "name a file of answers in the suite, answers: FILE"
            )
        values = {"question": data.queries[query], "answers": record.values[column]}
        layout: Layout = {"question": ("question",), "answers": ("answers",)}
        (row,) = canonical_rows(values, layout, "answered", where=record.where)
        answers[query] = row["answers"]
    return answers


def _answers_of_file(data: RetrievalData, answers: Path, columns: Mapping[str, str] | None) -> dict[str, Sequence[str]]:
    rows = load(answers, kind="answered", columns=columns)
    texts = {document.id: document.text for document in data.corpus}
    by_context: dict[tuple[str, str | None], list[str]] = {}
    by_question: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        question, context = row["question"].strip(), row["context"] and row["context"].strip()
        by_context.setdefault((question, context), []).extend(row["answers"])
        if context is None:
            by_question.setdefault(question, set()).add(tuple(row["answers"]))
    twice = next((question for question, ways in by_question.items() if len(ways) > 1), None)
    if twice is not None:
        raise ValueError(
            f"{answers} answers the question {twice!r} in several ways and has no column context to tell them "
            "apart; map it with columns: {context: my_column}"
        )
    by_query: dict[str, Sequence[str]] = {}
    for query, grades in data.qrels.items():
        question = data.queries[query].strip()
        contexts = [texts[document].strip() for document, grade in grades.items() if grade > 0 and document in texts]
        by_query[query] = [text for context in (*contexts, None) for text in by_context.get((question, context), ())]
    return by_query


def normalise(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and the articles a, an, the, with single spaces.

    Examples:
        >>> normalise(" The  U.S. Army, an  army")
        'us army army'
    """
    plain = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Return whether a prediction equals one of the answers after normalisation."""
    return normalise(prediction) in {normalise(answer) for answer in answers}


def contains_answer(text: str, answers: Sequence[str]) -> bool:
    """Return whether a text contains one of the answers as whole words, both normalised; 1910 does not contain 10.

    An answer that is empty after normalisation is in no text.
    """
    searched = normalise(text)
    normalised = (normalise(answer) for answer in answers)
    return any(answer and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", searched) for answer in normalised)


def can_be_found(answers: Sequence[str]) -> bool:
    """Return whether a context could contain one of the answers: texts do not quote `yes` or `no` (HotpotQA)."""
    return any(normalise(answer) not in ("", "yes", "no") for answer in answers)
