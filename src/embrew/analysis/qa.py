"""Read questions and answers: question and answer, query and document, multiple choice.

| what | columns |
|---|---|
| question | question, query, anchor |
| answer | answer, positive, pos, document, passage; in multiple choice (or label, answer_key, answerKey) the right |
| | choice's text, its letter, or its index from 0 |
| choices | choices, options: a list, letters with texts, or the Hub's `{text, label}`; or one column per choice: |
| | A, B, …; option_a, choice_1, … |
| negatives | negatives, negative, neg, distractors; negative_1, … |
| source | source, document_id, doc_id, doc: which document the row is from |

Rows without such columns are read as pairs for training (`embrew.data.columns`): FlagEmbedding, Tevatron, ms-swift,
sentence pairs.

Choices that are listed with consecutive letters or numbers (`A. Heparin`, `(b) Lithium`) are read without them, so that
a choice is the same text under every letter; so are an answer and its negatives that have them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from embrew.data.columns import find_layout
from embrew.data.datasets import load
from embrew.data.formats import named, unique_keys
from embrew.data.reading import expand, is_beir, read, splits

ACCEPTED: dict[str, tuple[str, ...]] = {
    "question": ("question", "query", "anchor"),
    "answer": ("answer", "positive", "pos", "document", "passage", "label", "answer_key", "answerKey"),
    "choices": ("choices", "options"),
    "negatives": ("negatives", "negative", "neg", "distractors"),
    "source": ("source", "document_id", "doc_id", "doc"),
}
ONLY_WITH_CHOICES = ("label", "answer_key", "answerKey")
RowValues = Mapping[str, Any]  # values by column
_CHOICE = re.compile(r"(?:option|choice|op)?_?([A-Ha-h]|\d)")
_NEGATIVE = re.compile(r"(?:negative|distractor)_?\d+")
_MARKER = re.compile(
    r"\s*(?:[(\[](?P<inside>[A-Za-z]|\d{1,2})[)\]]\s*|(?P<letter>[A-Za-z])(?:[.):]\s*|\s+[-–—]\s+)"
    r"|(?P<number>\d{1,2})[.)](?!\d)\s*)(?=\S)"
)


@dataclass(frozen=True)
class QA:
    """A question with one right answer.

    Attributes:
        negatives: wrong answers: the other choices, or the row's negatives.
        source: the document that it is from, if the row names it.
        where: the row's position, for messages.
    """

    question: str
    answer: str
    negatives: tuple[str, ...] = ()
    source: str | None = None
    where: str = ""


def read_qa(path: str | Path, *, columns: Mapping[str, str] | None = None, split: str | None = None) -> list[QA]:
    """Read the questions and answers of a file, of a folder, of a BEIR folder, or of a data set of the Hub.

    A row with several right answers becomes several pairs.

    Args:
        path: the file or folder.
        columns: `question`, `answer`, `choices`, `negatives` or `source` -> column in the file, for other names.
        split: split of a folder; default: `train`, else the only one.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: a row that cannot be read or has no question or answer (file and line), other columns, no rows.
    """
    source = Path(expand(path))
    if is_beir(source):
        return read_as_trained(path, split=split or "train")
    unknown = sorted(set(columns or ()) - set(ACCEPTED))
    if unknown:
        raise ValueError(f"columns: {unknown[0]!r} is none of {', '.join(ACCEPTED)}")
    if split is None:
        names = splits(source) if source.is_dir() else []
        split = names[0] if len(names) == 1 else "train"
    pairs: list[QA] = []
    for record in read(path, split=split):
        if not pairs and not columns and _is_of_training(record.values):
            return read_as_trained(path, split=split)
        pairs += _pairs(record.values, record.where, columns or {})
    if not pairs:
        raise ValueError(f"{source} holds no rows")
    return pairs


def read_as_trained(path: str | Path, **options: Any) -> list[QA]:
    """Read rows as a contrastive stage does; `options` are those of `embrew.data.datasets.load`."""
    rows = load(path, kind="pairs", **options)
    return [QA(row["query"], row["positive"], tuple(row["negatives"]), where=str(path)) for row in rows]


def _is_of_training(values: RowValues) -> bool:
    """Return whether a row is a pair for training, and has no columns of a question and its answer."""
    if all(any(named(values, name) for name in ACCEPTED[what]) for what in ("question", "answer")):
        return False
    return find_layout(values, "pairs") is not None


def _pairs(values: RowValues, where: str, mapping: Mapping[str, str]) -> Iterator[QA]:
    """Yield a pair for each right answer of a row."""
    columns = _columns(values, where, mapping)
    question = _text(values[columns["question"]], columns["question"], where)
    choices = _choices(values, columns.get("choices"), where)
    right_answers = values[columns["answer"]]
    if choices:
        answers = [_right(value, choices, columns["answer"], where) for value in _listed(right_answers)]
    else:
        answers = [_text(value, columns["answer"], where) for value in _listed(right_answers)]
    if not answers:
        raise ValueError(f"{where}: column {columns['answer']!r} holds no answer; remove the row, or give one")
    negatives = [text for text in without_markers(list(choices.values())) if text not in answers]
    for column in values:
        if column == columns.get("negatives") or _NEGATIVE.fullmatch(column):
            texts = _texts(values[column], column, where)
            negatives += [text for text in texts if text.strip() not in {answer.strip() for answer in answers}]
    if not choices and negatives:
        texts = without_markers([*answers, *negatives], ordered=False)
        answers, negatives = texts[: len(answers)], texts[len(answers) :]
    source = values.get(columns["source"]) if "source" in columns else None
    for answer in answers:
        yield QA(question, answer, tuple(dict.fromkeys(negatives)), None if source is None else str(source), where)


def _columns(values: RowValues, where: str, mapping: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a row by their meaning."""
    lacking = next((column for column in mapping.values() if column not in values), None)
    if lacking is not None:
        raise ValueError(f"{where}: there is no column {lacking!r}; the columns are {', '.join(values)}")
    columns = dict(mapping)
    try:
        present = {name: named(values, name) for names in ACCEPTED.values() for name in names}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not ("choices" in mapping or any(present[name] for name in ACCEPTED["choices"]) or _lettered(values)):
        present |= dict.fromkeys(ONLY_WITH_CHOICES)
    for what, names in ACCEPTED.items():
        column = next((present[name] for name in names if present[name]), None)
        if what not in columns and column is not None:
            columns[what] = column
    for what in ("question", "answer"):
        if what not in columns:
            accepted = "; ".join(
                f"{name}: {' | '.join(n for n in names if n not in ONLY_WITH_CHOICES)}"
                for name, names in ACCEPTED.items()
            )
            raise ValueError(
                f"{where}: no column for the {what}; found {', '.join(values) or 'none'}. Known are {accepted}. Name "
                f"another with --column {what}=NAME"
            )
    return columns


def _lettered(values: RowValues) -> dict[str, str]:
    """Return columns with one choice each, such as A, B, option_a, choice_1, by their labels."""
    columns = {match[1].upper(): column for column in values if (match := _CHOICE.fullmatch(column))}
    return columns if len(columns) > 1 else {}


def _choices(values: RowValues, column: str | None, where: str) -> dict[str, str]:
    """Return the text of each choice by its label; labels are letters if the row has none."""
    if column is None:
        columns = {label: name for label, name in _lettered(values).items() if values[name] not in (None, "")}
        return {label: _text(values[name], name, where) for label, name in columns.items()}
    value = _parsed(values[column])
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        value = dict(zip(value.get("label") or map(chr, count(ord("A"))), value["text"], strict=False))
    if not isinstance(value, Mapping):
        return dict(zip(map(chr, count(ord("A"))), _texts(value, column, where), strict=False))
    return {str(label): _text(text, column, where) for label, text in value.items() if text is not None}


def _right(value: Any, choices: Mapping[str, str], column: str, where: str) -> str:
    """Return the text of the right choice: `value` is a text, a label, or an index from 0."""
    plain = without_markers(list(choices.values()))
    by_text = {text.strip(): text for text in plain}
    by_text |= {text.strip(): bare for text, bare in zip(choices.values(), plain, strict=True)}
    by_label = {label.upper(): text for label, text in zip(choices, plain, strict=True)}
    key = "" if isinstance(value, bool) else str(value).strip()
    if isinstance(value, str) and key in by_text:
        return by_text[key]
    if key.upper() in by_label:
        return by_label[key.upper()]
    if key.isdecimal() and int(key) < len(plain):
        return plain[int(key)]
    raise ValueError(
        f"{where}: {column} is {value!r}, not one of the choices; give a choice's text, its label "
        f"({', '.join(choices)}) or its index from 0 to {len(choices) - 1}"
    )


def _parsed(value: Any) -> Any:
    """Return the list or mapping that a CSV cell holds as JSON; other values unchanged."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        with suppress(json.JSONDecodeError, RecursionError):
            return json.loads(value, object_pairs_hook=unique_keys)
    return value


def _texts(value: Any, column: str, where: str) -> list[str]:
    value = _parsed(value)
    return [] if value is None or value == "" else [_text(entry, column, where) for entry in _listed(value)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        what = "is empty" if value is None or isinstance(value, str) else f"holds a {type(value).__name__}, not a text"
        raise ValueError(f"{where}: column {column!r} {what}; repair or remove the row")
    return value


def without_markers(texts: Sequence[str], *, ordered: bool = True) -> list[str]:
    """Return texts without their markers if all begin with one and these are consecutive; otherwise unchanged.

    Markers count from A, a, 0 or 1, so that names such as `E. coli` and figures such as `1.5 mg` are not changed.

    Args:
        texts: all choices of a question.
        ordered: whether the markers must be in order.

    Examples:
        >>> without_markers(["A. Heparin", "B. Lithium"])
        ['Heparin', 'Lithium']
        >>> without_markers(["E. coli", "S. aureus"])
        ['E. coli', 'S. aureus']
    """
    matches = [match for text in texts if (match := _MARKER.match(text))]
    if len(texts) < 2 or len(matches) < len(texts):
        return list(texts)
    markers = [str(match["inside"] or match["letter"] or match["number"]) for match in matches]
    numbers = [int(marker) if marker.isdecimal() else ord(marker) for marker in markers]
    if not ordered:
        numbers.sort()
    if numbers[0] not in (0, 1, ord("A"), ord("a")) or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return list(texts)
    return [text[match.end() :].strip() for text, match in zip(texts, matches, strict=True)]
