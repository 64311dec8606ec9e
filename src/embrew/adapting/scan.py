"""The last check before training: search the training files for held-out questions and answers.

All files are read again from disk and searched as one text, independently of `leaks`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from embrew.adapting.matching import START, identifies, key, words
from embrew.adapting.question_parts import IN_QUERY, is_long, parts_of
from embrew.data.beir import read_beir
from embrew.data.fingerprints import normalised
from embrew.data.formats import read_file

EXAMPLES = 3


def scan(folder: Path, others: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Search the training files of a prepared folder for the questions and right answers of its test and dev sets.

    Answers of fewer than `IDENTITY` words are not searched.

    Args:
        folder: from `prepare`.
        others: rows of other training data.

    Returns:
        Numbers of `questions` and `answers` that were searched, of `texts`, and `remaining`: questions (or parts of
        them, see `question_parts`) and answers that were found; `examples` of these.
    """
    questions, answers = _held_out(folder)
    asked, read = _texts((*_rows(folder / "pairs.jsonl"), *_rows(folder / "passages.jsonl"), *others))
    whole = {key(text) for text in (*asked, *read)}
    long, exact = _joined(map(key, read)), _joined(map(normalised, read))
    with_asked = _joined(key(text) for text in (*asked, *read))
    only_asked = _joined(map(key, asked))
    partly = _partly(questions, asked, read)
    found = []
    for question in questions:
        short = len(words(question)) < START
        inside = (
            short
            and len(words(question)) > 1
            and question.rstrip().endswith("?")
            and f" {normalised(question)} " in exact
        )
        contained = not short and f" {key(question)} " in long
        contained |= len(words(question)) >= IN_QUERY and f" {key(question)} " in only_asked
        if key(question) in whole or inside or contained or question in partly:
            found.append(question)
    partly = _parts_in(answers, (*asked, *read))
    found += [answer for answer in answers if f" {key(answer)} " in with_asked or answer in partly]
    return {
        "questions": len(questions),
        "answers": len(answers),
        "texts": len(asked) + len(read),
        "remaining": len(found),
        "examples": found[:EXAMPLES],
    }


def check(folder: Path, others: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the result of `scan`; raise if something was found.

    Raises:
        ValueError: a training file holds a held-out question or answer.
    """
    found = scan(folder, others)
    if found["remaining"]:
        raise ValueError(
            f"{folder}: {found['remaining']} held-out questions or answers are in the training data, for example "
            f"{found['examples'][0]!r}; nothing was trained. Leave out that data, or choose another folder"
        )
    return found


def _partly(questions: list[str], asked: Iterable[str], read: Iterable[str]) -> set[str]:
    """Return the questions of which a part is in the training data: as a separate text, or within a document."""
    parts = parts_of(questions)
    by_start: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for part in parts:
        by_start[words(part)[:START]].append(part)
    found: set[str] = set()
    for text in read:
        own, inside = words(text), f" {key(text)} "
        for start in by_start.keys() & {own[i : i + START] for i in range(len(own) - START + 1)}:
            found |= {q for part in by_start[start] if f" {part} " in inside for q in parts[part]}
    return found | _parts_in(questions, (*asked, *read))


def _parts_in(wholes: list[str], texts: Iterable[str]) -> set[str]:
    """Return those of `wholes` that contain one of the texts as a long part."""
    keys = {whole: f" {key(whole)} " for whole in wholes}
    everything = "\n".join(keys.values())
    starts = {of[i : i + START] for of in map(words, wholes) for i in range(len(of) - START + 1)}
    found: set[str] = set()
    for text in texts:
        inside = f" {key(text)} "
        if is_long(text) and words(text)[:START] in starts and inside in everything:
            found |= {whole for whole, of in keys.items() if inside in of}
    return found


def _held_out(folder: Path) -> tuple[list[str], list[str]]:
    questions: dict[str, None] = {}
    answers: dict[str, None] = {}
    for split in ("test", "dev"):
        if (folder / split).is_dir():
            data = read_beir(folder / split, split)
            texts = {document.id: document.content for document in data.corpus}
            questions |= dict.fromkeys(data.queries.values())
            answers |= dict.fromkeys(texts[name] for grades in data.qrels.values() for name in grades)
    return list(questions), [answer for answer in answers if identifies(answer)]


def _texts(rows: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the training texts: queries, and documents."""
    asked: list[str] = []
    read: list[str] = []
    for row in rows:
        for column, value in row.items():
            if column == "document":  # a passage's id
                continue
            texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
            (asked if column == "query" else read).extend(texts)
    return asked, read


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return (dict(record.values) for record in read_file(path)) if path.stat().st_size else iter(())


def _joined(texts: Iterable[str]) -> str:
    return " \n ".join(["", *texts, ""])
