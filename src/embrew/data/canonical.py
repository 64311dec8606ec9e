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
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from embrew.data.columns import SYSTEM, Kind, Layout
from embrew.data.formats import Record, Values

MAY_BE_EMPTY = ("instruction", "subset")
MULTIMODAL = re.compile(r"<(image|video|audio)>")


FOREIGN = (
    "messages",
    "positive_messages",
    "negative_messages",
    "positive_passages",
    "negative_passages",
)
"""Columns of other libraries, whose values are no plain texts."""


class Cell(NamedTuple):
    """One value of a row.

    Attributes:
        value: the value, as the file has it.
        column: name of its column.
        record: the row.
    """

    value: Any
    column: str
    record: Record

    @property
    def location(self) -> str:
        """Row and column, for messages: `train.jsonl, line 3: column 'score'`."""
        return f"{self.record.where}: column {self.column!r}"


class Converter:
    """Makes canonical rows of rows with the same columns.

    A pair has `scores` (the positive's, then the negatives') and `document_instruction` only where they are given.

    Args:
        layout: columns of a row that the canonical ones are read from.
        kind: what the rows are.
        instruction: instruction of every pair, instead of those in the rows.
        instruct: `both`: documents also get the pair's instruction.
    """

    def __init__(
        self,
        layout: Layout,
        kind: Kind,
        *,
        instruction: str | None = None,
        instruct: Literal["query", "both"] = "query",
    ) -> None:
        self.layout, self.kind, self.instruction, self.instruct = layout, kind, instruction, instruct
        self._foreign = {c for sources in layout.values() for c in sources if c.strip().lower() in FOREIGN}

    def __call__(self, record: Record) -> list[Values]:
        """Return the canonical rows of a row: one, or one per positive.

        Raises:
            ValueError: a value is not what its column needs; says which.
        """
        if self._foreign:
            record = _plain(record, self._foreign, single=self.kind in ("scored", "labelled_pairs"))
        if self.kind == "pairs":
            return self._pairs(record)
        values = record.values
        if values.get(SYSTEM) is not None:
            raise ValueError(
                f"{record.where}: there is a system message, and {self.kind} rows have no instruction; remove it"
            )
        return [
            {
                column: _READ.get(column, _text)(Cell(values[source[0]], source[0], record))
                for column, source in self.layout.items()
            }
        ]

    def _pairs(self, record: Record) -> list[Values]:
        values, layout, instruction = record.values, self.layout, self.instruction

        def cell(column: str) -> Cell:
            return Cell(values[column], column, record)

        query = _text(cell(layout["query"][0]))
        negatives = [text for column in layout.get("negatives", ()) for text in _texts(cell(column))]
        if instruction is None and "instruction" in layout and values[layout["instruction"][0]] is not None:
            instruction = _text(cell(layout["instruction"][0]))
        positives = _texts(cell(layout["positive"][0]))
        if not positives:
            raise ValueError(
                f"{record.where}: column {layout['positive'][0]!r} holds no text; every row needs a positive"
            )
        scores = _scores([cell(column) for column in layout.get("scores", ())], len(positives), len(negatives))
        rows = []
        for number, positive in enumerate(positives):
            row: Values = {"query": query, "positive": positive, "negatives": negatives, "instruction": instruction}
            if scores:
                row["scores"] = scores[number]
            if self.instruct == "both" and instruction is not None:
                row["document_instruction"] = instruction
            rows.append(row)
        return rows


def empty_column(row: Values) -> str | None:
    """Return the first column of a canonical row with a text that is empty or blank; an instruction may be empty."""
    for column, value in row.items():
        if isinstance(value, str):
            if not value.strip() and column not in MAY_BE_EMPTY:
                return column
        elif isinstance(value, list):
            for text in value:
                if isinstance(text, str) and not text.strip():
                    return column
    return None


def _text(cell: Cell) -> str:
    if not isinstance(cell.value, str):
        raise ValueError(f"{cell.location} holds {_name(cell.value)}, not a text; repair or remove the row")
    return cell.value


def _texts(cell: Cell) -> list[str]:
    """Return a list of texts: a text alone as a list of one, missing negatives as an empty one.

    Of a table's `negative_1`, `negative_2`, …, the last cells of a row may be empty.
    """
    if cell.value is None and re.fullmatch(r"negatives|neg|negative_\d+", cell.column.strip().lower()):
        return []
    if not isinstance(cell.value, list):
        return [_text(cell)]
    for item in cell.value:
        if not isinstance(item, str):
            raise ValueError(f"{cell.location} holds {_name(item)} in its list, not a text; repair the row")
    return cell.value


def _answers(cell: Cell) -> list[str]:
    """Return answers: a text, a list of texts, or SQuAD's form on the Hub, an object with such a list under `text`."""
    if isinstance(cell.value, Mapping) and "text" in cell.value:
        cell = cell._replace(value=cell.value["text"])
    return _texts(cell)


def _number(cell: Cell) -> float:
    """Return a finite number, also if it is written as text, as in CSV files."""
    value = cell.value
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        text = repr(value) if isinstance(value, str) else _name(value)
        raise ValueError(f"{cell.location} holds {text}, not a finite number; repair or remove the row")
    return number


def _numbers(cell: Cell) -> list[float]:
    if not isinstance(cell.value, list):
        raise ValueError(f"{cell.location} holds {_name(cell.value)}, not a list of numbers; repair the row")
    return [_number(cell._replace(value=number)) for number in cell.value]


def _vector(cell: Cell) -> list[float]:
    numbers = _numbers(cell)
    length = math.hypot(*numbers)
    if not 1e-18 < length < 1e18:  # its square is computed in float32
        raise ValueError(f"{cell.location} holds a vector of length {length:g}; repair or remove the row")
    return numbers


def _scores(cells: Sequence[Cell], positives: int, negatives: int) -> list[list[float]]:
    """Return a teacher's scores for each positive: its own, then the negatives'; empty if the row has none."""
    if not cells or cells[0].value is None:
        return []
    lists = [_numbers(cell) for cell in cells]
    scores = [lists[0]] if len(lists) == 1 else [[score, *lists[1]] for score in lists[0]]
    if len(scores) != positives or any(len(row) != 1 + negatives for row in scores):
        columns, lengths = " and ".join(cell.column for cell in cells), [len(numbers) for numbers in lists]
        raise ValueError(
            f"{cells[0].record.where}: {columns} hold {lengths} scores for {positives} positives and {negatives} "
            "negatives; give each text one, or leave the column out"
        )
    return scores


def _label(cell: Cell) -> str:
    """Return a class as text: an integer or a name."""
    if isinstance(cell.value, bool) or not isinstance(cell.value, int | str):
        raise ValueError(f"{cell.location} holds {_name(cell.value)}; a label is an integer or a text")
    return str(cell.value)


def _subset(cell: Cell) -> str | None:
    return None if cell.value is None else str(cell.value)


_READ: dict[str, Callable[[Cell], Any]] = {
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


def _plain(record: Record, columns: Collection[str], *, single: bool) -> Record:
    """Return a row with plain texts in place of passages and messages.

    Args:
        record: the row.
        columns: names of columns that hold such values.
        single: whether `positive_messages` are one text, not a list.

    Raises:
        ValueError: a value has another form than the library's.
    """
    values = record.values
    plain: Values = {}
    for column in columns:
        name, location = column.strip().lower(), f"{record.where}: column {column!r}"
        if name == "messages":
            plain[column], plain[SYSTEM] = _conversation(values[column], location)
        elif name in ("positive_passages", "negative_passages"):
            plain[column] = [_passage(item, location) for item in _list(values[column], location)]
        else:
            parts = [_conversation(item, location) for item in _list(values[column], location)]
            if any(system is not None for _, system in parts):
                raise ValueError(
                    f"{location} has a system message, and documents take the encoder's own prompt; remove it, and set "
                    "encoder.prompts.document"
                )
            texts = [text for text, _ in parts]
            plain[column] = texts[0] if single and len(texts) == 1 else texts
    return record._replace(values={**values, **plain})


def _list(value: Any, location: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{location} holds a {type(value).__name__}, not a list; repair the row")
    return value or []


def _passage(value: Any, location: str) -> str:
    """Return title and text, joined by a space as in Tevatron."""
    text = value.get("text") if isinstance(value, Mapping) else None
    title = value.get("title") if isinstance(value, Mapping) else None
    if not isinstance(text, str) or not isinstance(title, str | None):
        raise ValueError(f'{location} holds {value!r:.80}, not a passage; write {{"docid": …, "title": …, "text": …}}')
    return f"{title} {text}" if title else text


def _conversation(value: Any, location: str) -> tuple[str, str | None]:
    """Return the user's message, and the system's message if there is one."""
    messages = [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
    roles: dict[Any, Any] = {message.get("role"): message.get("content") for message in messages}
    is_plain = "user" in roles and roles.keys() <= {"system", "user"} and len(roles) == len(value)
    if not is_plain or not all(isinstance(content, str) for content in roles.values()):
        raise ValueError(
            f"{location} holds {value!r:.120}; an embedding is trained on one user message, after a system message if "
            'there is an instruction: write [{"role": "user", "content": …}]'
        )
    tag = MULTIMODAL.search(roles["user"])
    if tag:
        raise ValueError(f"{location} holds {tag.group()}; embrew reads text only: remove the row")
    return roles["user"], f"{roles['system']} " if "system" in roles else None
