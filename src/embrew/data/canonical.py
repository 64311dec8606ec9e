"""Turn rows of a file into canonical rows, by the layout of their columns (see `embrew.data.columns`).

Values of other libraries become plain texts first:

| column | value | becomes |
|---|---|---|
| `positive_passages`, `negative_passages` (Tevatron) | a list of `{docid, title, text}` | title and text of each |
| `messages` (ms-swift) | a list of `{role, content}` | the user's message; the system's message is the instruction |
| `positive_messages`, `negative_messages` (ms-swift) | a list of such lists | the user's message of each |
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

from embrew.data.columns import SYSTEM, Kind, Layout

MULTIMODAL = re.compile(r"<(image|video|audio)>")


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
    values = _plain_values(values, used, one=kind in ("scored", "labelled_pairs"), where=where)
    if kind != "pairs":
        if values.get(SYSTEM) is not None:
            raise ValueError(f"{where}: there is a system message, and {kind} rows have no instruction; remove it")
        yield {column: _READ.get(column, _text)(values, source[0], where) for column, source in layout.items()}
        return
    query = _text(values, layout["query"][0], where)
    negatives = [text for column in layout.get("negatives", ()) for text in _texts(values, column, where)]
    if instruction is None and "instruction" in layout and values[layout["instruction"][0]] is not None:
        instruction = _text(values, layout["instruction"][0], where)
    positives = _texts(values, layout["positive"][0], where)
    if not positives:
        raise ValueError(f"{where}: column {layout['positive'][0]!r} holds no text; every row needs a positive")
    scores = _scores(values, layout.get("scores"), len(positives), len(negatives), where)
    for number, positive in enumerate(positives):
        row: dict[str, Any] = {"query": query, "positive": positive, "negatives": negatives}
        row["instruction"] = instruction
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
        shown = repr(value) if isinstance(value, str) else _name(value)
        raise ValueError(f"{where}: column {column!r} holds {shown}, not a finite number; repair or remove the row")
    return number


def _numbers(values: Mapping[str, Any], column: str, where: str) -> list[float]:
    numbers = values[column]
    if not isinstance(numbers, list):
        raise ValueError(f"{where}: column {column!r} holds {_name(numbers)}, not a list of numbers; repair the row")
    return [_number({column: number}, column, where) for number in numbers]


def _vector(values: Mapping[str, Any], column: str, where: str) -> list[float]:
    numbers = _numbers(values, column, where)
    length = math.hypot(*numbers)
    if not 1e-18 < length < 1e18:  # its square is computed in float32
        raise ValueError(f"{where}: column {column!r} holds a vector of length {length:g}; repair or remove the row")
    return numbers


def _scores(
    values: Mapping[str, Any], columns: tuple[str, ...] | None, positives: int, negatives: int, where: str
) -> list[list[float]]:
    """Return a teacher's scores for each positive: its own, then the negatives'; empty if the row has none."""
    if columns is None or values[columns[0]] is None:
        return []
    lists = [_numbers(values, column, where) for column in columns]
    scores = [lists[0]] if len(lists) == 1 else [[own, *lists[1]] for own in lists[0]]
    if len(scores) != positives or any(len(row) != 1 + negatives for row in scores):
        raise ValueError(
            f"{where}: {' and '.join(columns)} hold {[len(numbers) for numbers in lists]} scores for {positives} "
            f"positives and {negatives} negatives; give each text one, or leave the column out"
        )
    return scores


def _label(values: Mapping[str, Any], column: str, where: str) -> str:
    """Return a class as text: an integer or a name."""
    value = values[column]
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{where}: column {column!r} holds {_name(value)}; a label is an integer or a text")
    return str(value)


def _subset(values: Mapping[str, Any], column: str, where: str) -> str | None:
    return None if values[column] is None else str(values[column])


_READ: dict[str, Callable[[Mapping[str, Any], str, str], Any]] = {
    "score": _number,
    "subset": _subset,
    "label": _label,
    "positive": _texts,
    "negative": _texts,
    "human_summaries": _texts,
    "machine_summaries": _texts,
    "relevance": _numbers,
    "vector": _vector,
    "answers": _answers,
}
"""Of columns that hold something else than a text, in rows that are no pairs."""


def _name(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, float) else f"a {type(value).__name__}"


def _plain_values(values: Mapping[str, Any], columns: Collection[str], *, one: bool, where: str) -> Mapping[str, Any]:
    """Return a row with plain texts in place of passages and messages; other rows unchanged.

    Args:
        values: of the row.
        columns: those that are read.
        one: `positive_messages` are one text, not a list.
        where: the row, for messages.

    Raises:
        ValueError: a value has another form than the library's.
    """
    plain: dict[str, Any] = {}
    for column in columns & values.keys():
        name, place = column.strip().lower(), f"{where}: column {column!r}"
        if name == "messages":
            plain[column], plain[SYSTEM] = _conversation(values[column], place)
        elif name in ("positive_passages", "negative_passages"):
            plain[column] = [_passage(item, place) for item in _list(values[column], place)]
        elif name in ("positive_messages", "negative_messages"):
            parts = [_conversation(item, place) for item in _list(values[column], place)]
            if any(system is not None for _, system in parts):
                raise ValueError(
                    f"{place} has a system message, and documents take the encoder's own prompt; remove it, and set "
                    "encoder.prompts.document"
                )
            texts = [text for text, _ in parts]
            plain[column] = texts[0] if one and len(texts) == 1 else texts
    return {**values, **plain} if plain else values


def _list(value: Any, place: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{place} holds a {type(value).__name__}, not a list; repair the row")
    return value or []


def _passage(value: Any, place: str) -> str:
    """Return title and text, joined by a space as in Tevatron."""
    text = value.get("text") if isinstance(value, Mapping) else None
    title = value.get("title") if isinstance(value, Mapping) else None
    if not isinstance(text, str) or not isinstance(title, str | None):
        raise ValueError(f'{place} holds {value!r:.80}, not a passage; write {{"docid": …, "title": …, "text": …}}')
    return f"{title} {text}" if title else text


def _conversation(value: Any, place: str) -> tuple[str, str | None]:
    """Return the user's message, and the system's message if there is one."""
    messages = [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
    roles: dict[Any, Any] = {message.get("role"): message.get("content") for message in messages}
    is_plain = "user" in roles and roles.keys() <= {"system", "user"} and len(roles) == len(value)
    if not is_plain or not all(isinstance(content, str) for content in roles.values()):
        raise ValueError(
            f"{place} holds {value!r:.120}; an embedding is trained on one user message, after a system message if "
            'there is an instruction: write [{"role": "user", "content": …}]'
        )
    tag = MULTIMODAL.search(roles["user"])
    if tag:
        raise ValueError(f"{place} holds {tag.group()}; embrew reads text only: remove the row")
    return roles["user"], f"{roles['system']} " if "system" in roles else None
