"""Turn rows of a file into canonical rows, by the layout of their columns (see `embrew.data.columns`)."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from embrew.data.columns import Kind, Layout
from embrew.data.foreign import SYSTEM, plain_values


def canonical_rows(
    values: Mapping[str, Any],
    layout: Layout,
    kind: Kind,
    *,
    where: str,
    instruction: str | None = None,
    instruct: Literal["query", "both"] = "query",
) -> Iterator[dict[str, Any]]:
    """Yield the canonical rows of one row: one, or one per positive.

    A pair has `scores` (the positive's, then the negatives') and `document_instruction` only where they are given.
    """
    used = {column for sources in layout.values() for column in sources}
    values = plain_values(values, used, one=kind in ("scored", "labelled_pairs"), where=where)
    if kind != "pairs" and values.get(SYSTEM) is not None:
        raise ValueError(f"{where}: there is a system message, and {kind} rows have no instruction; remove it")
    if kind == "text":
        yield {"text": _text(values, layout["text"][0], where)}
    elif kind == "scored":
        subset = layout.get("subset")
        yield {
            "sentence1": _text(values, layout["sentence1"][0], where),
            "sentence2": _text(values, layout["sentence2"][0], where),
            "score": _number(values, layout["score"][0], where),
            "subset": None if subset is None or values[subset[0]] is None else str(values[subset[0]]),
        }
    elif kind != "pairs":
        yield {column: _READ[column](values, source[0], where) for column, source in layout.items()}
    else:
        query = _text(values, layout["query"][0], where)
        negatives = [text for column in layout.get("negatives", ()) for text in _texts(values, column, where)]
        if instruction is None and "instruction" in layout and values[layout["instruction"][0]] is not None:
            instruction = _text(values, layout["instruction"][0], where)
        positives = _texts(values, layout["positive"][0], where)
        if not positives:
            raise ValueError(f"{where}: column {layout['positive'][0]!r} holds no text; every row needs a positive")
        scores = _scores(values, layout.get("scores"), len(positives), len(negatives), where)
        for number, positive in enumerate(positives):
            row: dict[str, Any] = {
                "query": query,
                "positive": positive,
                "negatives": negatives,
                "instruction": instruction,
            }
            if scores:
                row["scores"] = scores[number]
            if instruct == "both" and instruction is not None:
                row["document_instruction"] = instruction
            yield row


def check_filled(row: Mapping[str, Any], *, where: str) -> None:
    """Raise if a text of a canonical row is empty or white space; an instruction may be empty."""
    for column, value in row.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and column not in ("instruction", "subset") and not text.strip():
                raise ValueError(f"{where}: {column} is empty; remove the row, or set min_chars to drop short texts")


def _text(values: Mapping[str, Any], column: str, where: str) -> str:
    value = values[column]
    if not isinstance(value, str):
        raise ValueError(f"{where}: column {column!r} holds {_name(value)}, not a text; repair or remove the row")
    return value


def _texts(values: Mapping[str, Any], column: str, where: str) -> list[str]:
    """Return a list of texts: a text alone as a list of one, missing negatives as an empty one.

    Of a table's `negative_1`, `negative_2`, …, the last cells of a row may be empty.
    """
    value = values[column]
    if value is None and re.fullmatch(r"negatives|neg|negative_\d+", column.strip().lower()):
        return []
    if not isinstance(value, list):
        return [_text(values, column, where)]
    for item in value:
        if not isinstance(item, str):
            raise ValueError(f"{where}: column {column!r} holds {_name(item)} in its list, not a text; repair the row")
    return value


def _answers(values: Mapping[str, Any], column: str, where: str) -> list[str]:
    """Return answers: a text, a list of texts, or SQuAD's form on the Hub, an object with such a list under `text`."""
    value = values[column]
    texts = value["text"] if isinstance(value, Mapping) and "text" in value else value
    return _texts({column: texts}, column, where)


def _number(values: Mapping[str, Any], column: str, where: str) -> float:
    """Return a finite number, also if it is written as text, as in CSV files."""
    value = values[column]
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        said = repr(value) if isinstance(value, str) else _name(value)
        raise ValueError(f"{where}: column {column!r} holds {said}, not a finite number; repair or remove the row")
    return number


def _numbers(values: Mapping[str, Any], column: str, where: str) -> list[float]:
    numbers = values[column]
    if not isinstance(numbers, list):
        raise ValueError(f"{where}: column {column!r} holds {_name(numbers)}, not a list of numbers; repair the row")
    return [_number({column: number}, column, where) for number in numbers]


def _scores(
    values: Mapping[str, Any], columns: tuple[str, ...] | None, positives: int, negatives: int, where: str
) -> list[list[float]]:
    """Return a teacher's scores for each positive: its own, then the negatives'; empty if the row has none."""
    if columns is None or values[columns[0]] is None:
        return []
    lists = [_numbers(values, column, where) for column in columns]
    found = [lists[0]] if len(lists) == 1 else [[own, *lists[1]] for own in lists[0]]
    if len(found) != positives or any(len(scores) != 1 + negatives for scores in found):
        raise ValueError(
            f"{where}: {' and '.join(columns)} hold {[len(numbers) for numbers in lists]} scores for {positives} "
            f"positives and {negatives} negatives; give each text one, or leave the column out"
        )
    return found


def _label(values: Mapping[str, Any], column: str, where: str) -> str:
    """Return a class as text: an integer or a name."""
    value = values[column]
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{where}: column {column!r} holds {_name(value)}; a label is an integer or a text")
    return str(value)


_READ: dict[str, Callable[[Mapping[str, Any], str, str], Any]] = {
    "text": _text,
    "sentence1": _text,
    "sentence2": _text,
    "label": _label,
    "query": _text,
    "positive": _texts,
    "negative": _texts,
    "human_summaries": _texts,
    "machine_summaries": _texts,
    "relevance": _numbers,
    "question": _text,
    "context": _text,
    "answers": _answers,
}


def _name(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, float) else f"a {type(value).__name__}"
