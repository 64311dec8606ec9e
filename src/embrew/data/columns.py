"""Canonical columns: what the columns of a file are taken for, and their rows in one form.

| kind | canonical row | accepted columns |
|---|---|---|
| text | text | text |
| pairs | query, positive, negatives, instruction, scores | Sentence-Transformers' and FlagEmbedding's, see `ACCEPTED` |
| scored | sentence1, sentence2, score, subset | the same |
| labelled | text, label | the same |
| labelled_pairs | sentence1, sentence2, label | the same, labels |
| candidates | query, positive, negative: lists | the same |
| summaries | text, human_summaries, machine_summaries, relevance: lists | the same |
| answered | question, answers: a list; context | see `ACCEPTED` |
"""

import logging
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

Kind = Literal["text", "pairs", "scored", "labelled", "labelled_pairs", "candidates", "summaries", "answered"]
Layout = dict[str, tuple[str, ...]]  # canonical column -> columns of the file

ACCEPTED: dict[str, dict[str, tuple[str, ...]]] = {
    "text": {"text": ("text",)},
    "pairs": {
        "query": ("query", "anchor"),
        "positive": ("positive", "pos"),
        "negatives": ("negatives", "negative", "neg", "negative_N"),
        "instruction": ("instruction", "prompt"),
        "scores": ("scores", "pos_scores"),
    },
    "scored": {"sentence1": ("sentence1",), "sentence2": ("sentence2",), "score": ("score",), "subset": ("subset",)},
    "labelled": {"text": ("text",), "label": ("label",)},
    "labelled_pairs": {"sentence1": ("sentence1",), "sentence2": ("sentence2",), "label": ("label", "labels")},
    "candidates": {"query": ("query",), "positive": ("positive",), "negative": ("negative",)},
    "summaries": {
        "text": ("text",),
        "human_summaries": ("human_summaries",),
        "machine_summaries": ("machine_summaries",),
        "relevance": ("relevance",),
    },
    "answered": {"question": ("question",), "context": ("context",), "answers": ("answers", "answer")},
}
OPTIONAL = {"negatives", "instruction", "scores", "subset", "context"}
LENGTH_OF: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "pairs": ("query", "positive"),
    "scored": ("sentence1", "sentence2"),
    "labelled": ("text",),
    "labelled_pairs": ("sentence1", "sentence2"),
    "candidates": ("query",),
    "summaries": ("text",),
    "answered": ("question",),
}


def match(columns: Collection[str], kind: Kind, *, mapping: Mapping[str, str] | None = None) -> Layout:
    """Which columns of a file are taken for which canonical column.

    Examples:
        >>> match(["anchor", "positive", "negative"], "pairs")
        {'query': ('anchor',), 'positive': ('positive',), 'negatives': ('negative',)}
    """
    mapping = mapping or {}
    for canonical, column in mapping.items():
        if canonical not in ACCEPTED[kind]:
            raise ValueError(
                f"columns: {canonical!r} is no column of {kind} rows; choose from {', '.join(ACCEPTED[kind])}"
            )
        if column not in columns:
            raise ValueError(f"columns: {canonical}: {column!r} is not there; {_found(columns)}")
    free = [column for column in columns if column not in mapping.values()]
    layout: Layout = {}
    for canonical, accepted in ACCEPTED[kind].items():
        found = [(mapping[canonical],)] if canonical in mapping else _candidates(free, accepted)
        if len(found) > 1:
            names = " and ".join(", ".join(columns) for columns in found)
            raise ValueError(
                f"{names} could both be {canonical!r}; say which, e.g. columns: {{{canonical}: {found[0][0]}}}"
            )
        if found:
            layout[canonical] = found[0]
        elif canonical not in OPTIONAL:
            raise ValueError(f"no column for {canonical!r}; {_found(columns)}\n{accepted_layouts(kind)}")
    _check_rest(unused(columns, layout), kind)
    return layout


def accepted_layouts(kind: Kind) -> str:
    """The columns that are understood, and how to name others, in words."""
    lines = [f"{kind} rows are read from these columns:"]
    for canonical, accepted in ACCEPTED[kind].items():
        optional = " (optional)" if canonical in OPTIONAL else ""
        lines.append(f"  {canonical}{optional}: {' | '.join(accepted)}")
    first = next(iter(ACCEPTED[kind]))
    return "\n".join(
        [*lines, f"Map others with columns: {{canonical: column in the file}}, e.g. {{{first}: my_column}}"]
    )


def unused(columns: Collection[str], layout: Layout) -> list[str]:
    """Columns of the file that no canonical column is read from."""
    return sorted(set(columns) - {column for sources in layout.values() for column in sources})


def understood(columns: Collection[str], layout: Layout) -> str:
    """One line that says what was matched."""
    parts = [f"{canonical} <- {', '.join(sources)}" for canonical, sources in layout.items()]
    rest = unused(columns, layout)
    return "; ".join(parts) + (f" (not used: {', '.join(rest)})" if rest else "")


def canonical_rows(
    values: Mapping[str, Any],
    layout: Layout,
    kind: Kind,
    *,
    where: str,
    instruction: str | None = None,
    instruct: Literal["query", "both"] = "query",
) -> Iterator[dict[str, Any]]:
    """The canonical rows of one row: one, or one for each of several positives.

    A pair has `scores` (the positive's, then the negatives') and `document_instruction` only where they are given.
    """
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
    """Raise if a text of a canonical row is empty or white space (an instruction may be)."""
    for column, value in row.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and column not in ("instruction", "subset") and not text.strip():
                raise ValueError(f"{where}: {column} is empty; remove the row, or set min_chars to drop short texts")


def describe(dataset: "Dataset", *, rows: int = 3, width: int = 80) -> dict[str, Any]:
    """What was understood of a data set: `rows`, `columns` (one line of matches) and shortened `examples`."""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(item) for item in value]
        return value[: width - 1] + "…" if isinstance(value, str) and len(value) > width else value

    examples = [{column: short(value) for column, value in dataset[i].items()} for i in range(min(rows, len(dataset)))]
    return {"rows": len(dataset), "columns": dataset.info.description, "examples": examples}


def _found(columns: Collection[str]) -> str:
    return f"the columns found are {', '.join(sorted(columns)) or '(none)'}"


def _candidates(columns: list[str], accepted: tuple[str, ...]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [(column,) for column in accepted if column in columns]
    numbered = [column for column in columns if re.fullmatch(r"negative_\d+", column)]
    if ("pos_scores",) in found:  # FlagEmbedding's, one list for the positives and one for the negatives
        found.remove(("pos_scores",))
        if "neg_scores" in columns:
            found.append(("pos_scores", "neg_scores"))
    if numbered and "negative_N" in accepted:
        found.append(tuple(sorted(numbered, key=lambda column: int(column.split("_")[1]))))
    return found


def _check_rest(columns: list[str], kind: Kind) -> None:
    """A leftover column that looks like a text to train on is a mistake, not decoration."""
    if kind != "pairs":
        return
    texts = {"anchor", "query", "queries", "pos", "positive", "positives", "neg", "negative", "negatives"}
    for column in columns:
        words = set(re.split(r"[^a-z]+", column.lower()))
        if words & texts and not words & {"id", "ids", "score", "scores", "label", "labels", "type", "index"}:
            raise ValueError(
                f"column {column!r} looks like a text of the pairs, but is not understood; rename or remove it\n"
                f"{accepted_layouts(kind)}"
            )


def _text(values: Mapping[str, Any], column: str, where: str) -> str:
    value = values[column]
    if not isinstance(value, str):
        raise ValueError(f"{where}: column {column!r} holds {_name(value)}, not a text; mend or remove the row")
    return value


def _texts(values: Mapping[str, Any], column: str, where: str) -> list[str]:
    """A text as a list of one; a list as it is; a missing list of negatives as an empty one."""
    value = values[column]
    if value is None and column in ("negatives", "neg"):
        return []
    if not isinstance(value, list):
        return [_text(values, column, where)]
    for item in value:
        if not isinstance(item, str):
            raise ValueError(f"{where}: column {column!r} holds {_name(item)} in its list, not a text; mend the row")
    return value


def _answers(values: Mapping[str, Any], column: str, where: str) -> list[str]:
    """A text, a list of texts, or SQuAD's form on the Hub, an object with such a list under `text`."""
    value = values[column]
    texts = value["text"] if isinstance(value, Mapping) and "text" in value else value
    return _texts({column: texts}, column, where)


def _number(values: Mapping[str, Any], column: str, where: str) -> float:
    value = values[column]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(
            f"{where}: column {column!r} holds {_name(value)}, not a finite number; mend or remove the row"
        )
    return float(value)


def _numbers(values: Mapping[str, Any], column: str, where: str) -> list[float]:
    numbers = values[column]
    if not isinstance(numbers, list):
        raise ValueError(f"{where}: column {column!r} holds {_name(numbers)}, not a list of numbers; mend the row")
    return [_number({column: number}, column, where) for number in numbers]


def _scores(
    values: Mapping[str, Any], columns: tuple[str, ...] | None, positives: int, negatives: int, where: str
) -> list[list[float]]:
    """A teacher's scores for each positive: its own, then the negatives'; nothing where the row has none."""
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
    """A class: an integer or a name, both as text."""
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
