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

Choices that are listed with consecutive letters or numbers (`A. Heparin`, `(b) Lithium`) are read without them, so that
a choice is the same text under every letter; so are an answer and its negatives that have them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.data.datasets import load
from embrew.data.formats import named
from embrew.data.reading import expand, is_beir, read, splits

ACCEPTED: dict[str, tuple[str, ...]] = {
    "question": ("question", "query", "anchor"),
    "answer": ("answer", "positive", "pos", "document", "passage", "label", "answer_key", "answerKey"),
    "choices": ("choices", "options"),
    "negatives": ("negatives", "negative", "neg", "distractors"),
    "source": ("source", "document_id", "doc_id", "doc"),
}
ONLY_WITH_CHOICES = ("label", "answer_key", "answerKey")
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
    """Read the questions and answers of a file, of a folder, or of a BEIR folder.

    A row with several right answers becomes several pairs.

    Args:
        path: the file or folder.
        columns: `question`, `answer`, `choices`, `negatives` or `source` -> column in the file, for other names.
        split: split of a folder; default: `train`, else the only one.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: a row that cannot be read or has no question or answer (file and line), other columns, no rows.
    """
    place = Path(expand(path))
    if is_beir(place):
        rows = load(place, kind="pairs", split=split or "train")
        return [QA(row["query"], row["positive"], where=str(place)) for row in rows]
    unknown = sorted(set(columns or ()) - set(ACCEPTED))
    if unknown:
        raise ValueError(f"columns: {unknown[0]!r} is none of {', '.join(ACCEPTED)}")
    if split is None:
        names = splits(place) if place.is_dir() else []
        split = names[0] if len(names) == 1 else "train"
    pairs: list[QA] = []
    for record in read(place, split=split):
        pairs += _pairs(record.values, record.where, columns or {})
    if not pairs:
        raise ValueError(f"{place} holds no rows")
    return pairs


def _pairs(values: Mapping[str, Any], where: str, mapping: Mapping[str, str]) -> Iterator[QA]:
    columns = _columns(values, where, mapping)
    question = _text(values[columns["question"]], columns["question"], where)
    answer_value = values[columns["answer"]]
    written = _choices(values, columns.get("choices"), where)
    choices = _without_markers(written)
    negatives: list[str] = []
    if choices:
        same = {text.strip(): plain for (_, text), (_, plain) in zip(written, choices, strict=True)}
        answers = [
            _right(same.get(one.strip(), one) if isinstance(one, str) else one, choices, columns["answer"], where)
            for one in _listed(answer_value)
        ]
        negatives = [text for _, text in choices if text not in answers]
    else:
        answers = [_text(one, columns["answer"], where) for one in _listed(answer_value)]
    for column in (column for column in values if column == columns.get("negatives") or _NEGATIVE.fullmatch(column)):
        right = {answer.strip() for answer in answers}
        negatives += [text for text in _texts(values[column], column, where) if text.strip() not in right]
    if not answers:
        raise ValueError(f"{where}: column {columns['answer']!r} holds no answer; remove the row, or give one")
    if not choices and negatives:
        both = without_markers([*answers, *negatives], ordered=False)
        answers, negatives = both[: len(answers)], both[len(answers) :]
    source = values.get(columns["source"]) if "source" in columns else None
    for answer in answers:
        yield QA(question, answer, tuple(dict.fromkeys(negatives)), None if source is None else str(source), where)


def _columns(values: Mapping[str, Any], where: str, mapping: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a row by their meaning."""
    try:
        own = {name: named(values, name) for names in ACCEPTED.values() for name in names}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    lacking = next((column for column in mapping.values() if column not in values), None)
    if lacking is not None:
        raise ValueError(f"{where}: there is no column {lacking!r}; the columns are {', '.join(values)}")
    columns: dict[str, str] = dict(mapping)
    has_choices = "choices" in mapping or any(own[c] for c in ACCEPTED["choices"]) or bool(_lettered(values))
    for what, names in ACCEPTED.items():
        allowed = [c for n in names if (c := own[n]) and (has_choices or n not in ONLY_WITH_CHOICES)]
        if what not in columns and allowed:
            columns[what] = allowed[0]
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


def _lettered(values: Mapping[str, Any]) -> dict[str, str]:
    """Return columns with one choice each, such as A, B, option_a, choice_1."""
    columns = {}
    for column in values:
        match = _CHOICE.fullmatch(column)
        if match:
            columns[match.group(1).upper()] = column
    return columns if len(columns) > 1 else {}


def _choices(values: Mapping[str, Any], column: str | None, where: str) -> list[tuple[str, str]]:
    """Return label and text of each choice; labels are letters if the row has none."""
    if column is None:
        return [
            (label, _text(values[name], name, where))
            for label, name in _lettered(values).items()
            if values[name] not in (None, "")
        ]
    value = _parsed(values[column])
    if value is None:
        return []
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        texts = [_text(text, column, where) for text in value["text"]]
        return list(zip(map(str, value.get("label") or _letters(len(texts))), texts, strict=True))
    if isinstance(value, Mapping):
        return [(str(label), _text(text, column, where)) for label, text in value.items() if text is not None]
    texts = _texts(value, column, where)
    return list(zip(_letters(len(texts)), texts, strict=True))


def _without_markers(choices: list[tuple[str, str]]) -> list[tuple[str, str]]:
    plain = without_markers([text for _, text in choices])
    return [(label, text) for (label, _), text in zip(choices, plain, strict=True)]


def _right(value: Any, choices: list[tuple[str, str]], column: str, where: str) -> str:
    """Return the text of the right choice, value as text, as its label, or as its index from 0."""
    by_text = {text.strip(): text for _, text in choices}
    if isinstance(value, str) and value.strip() in by_text:
        return by_text[value.strip()]
    by_label = {label.upper(): text for label, text in choices}
    if str(value).strip().upper() in by_label:
        return by_label[str(value).strip().upper()]
    if not isinstance(value, bool) and str(value).strip().isdecimal() and int(value) < len(choices):
        return choices[int(value)][1]
    labels = ", ".join(label for label, _ in choices)
    raise ValueError(
        f"{where}: {column} is {value!r}, not one of the choices; give a choice's text, its label ({labels}) or "
        f"its index from 0 to {len(choices) - 1}"
    )


def _parsed(value: Any) -> Any:
    """Return the list or mapping that a CSV cell holds as JSON; other values unchanged."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    return value


def _texts(value: Any, column: str, where: str) -> list[str]:
    value = _parsed(value)
    if value is None or value == "":
        return []
    return [_text(one, column, where) for one in _listed(value)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        what = "is empty" if value is None or isinstance(value, str) else f"holds a {type(value).__name__}, not a text"
        raise ValueError(f"{where}: column {column!r} {what}; repair or remove the row")
    return value


def _letters(count: int) -> list[str]:
    return [chr(ord("A") + i) for i in range(count)]


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
    places = [int(marker) if marker.isdecimal() else ord(marker) for marker in markers]
    if not ordered:
        places.sort()
    if places[0] not in (0, 1, ord("A"), ord("a")) or places != list(range(places[0], places[0] + len(places))):
        return list(texts)
    return [text[match.end() :].strip() for text, match in zip(texts, matches, strict=True)]
