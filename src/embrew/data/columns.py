"""Map the columns of a file to canonical columns.

| kind | canonical row |
|---|---|
| text | text, vector |
| pairs | query, positive, negatives, instruction, scores |
| scored | sentence1, sentence2, score, subset |
| labelled | text, label |
| labelled_pairs | sentence1, sentence2, label |
| candidates | query, positive, negative: lists |
| summaries | text, human_summaries, machine_summaries, relevance: lists |
| answered | question, answers: a list; context |

`ACCEPTED` and `OTHERS` list the columns of a file that these are read from. Names are case-insensitive.
"""

import re
from collections.abc import Collection, Mapping
from typing import Literal

from embrew.data.formats import same_name

Kind = Literal["text", "pairs", "scored", "labelled", "labelled_pairs", "candidates", "summaries", "answered"]
Layout = dict[str, tuple[str, ...]]  # canonical column -> columns of the file

ACCEPTED: dict[str, Layout] = {
    "text": {"text": ("text",), "vector": ("vector",)},
    "pairs": {
        "query": ("query", "anchor"),
        "positive": ("positive", "pos", "positive_passages"),
        "negatives": ("negatives", "negative", "neg", "negative_N", "negative_passages"),
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
OTHERS: dict[str, tuple[Layout, ...]] = {
    "text": ({"text": ("messages",)},),
    "pairs": (
        {"query": ("query", "anchor", "question"), "positive": ("positive", "pos", "answer")},
        {"query": ("sentence1",), "positive": ("sentence2",)},
        {"query": ("messages",), "positive": ("positive_messages",), "negatives": ("negative_messages",)},
    ),
    "scored": ({"sentence1": ("messages",), "sentence2": ("positive_messages",), "score": ("label", "score")},),
    "labelled": ({"text": ("messages",)},),
    "labelled_pairs": ({"sentence1": ("messages",), "sentence2": ("positive_messages",)},),
    "candidates": (
        {"positive": ("positive_passages",), "negative": ("negative_passages",)},
        {"query": ("messages",), "positive": ("positive_messages",), "negative": ("negative_messages",)},
    ),
}
"""Columns that are read if those of `ACCEPTED` are incomplete; for columns without an entry, those of `ACCEPTED`."""
LABELS = {"label", "labels", "score", "scores"}
"""Columns that mark whether `sentence1` and `sentence2`, or messages, are a pair of query and positive."""
SYSTEM = "messages of the system"
"""Key under which the instruction of `messages` is stored (see `embrew.data.canonical`)."""
OPTIONAL = {"negatives", "instruction", "scores", "subset", "context", "vector"}


def match(
    columns: Collection[str], kind: Kind, *, mapping: Mapping[str, str] | None = None, chosen: Collection[str] = ()
) -> Layout:
    """Return the columns of a file that each canonical column is read from.

    Args:
        columns: of the file.
        kind: what the rows are.
        mapping: canonical column -> column of the file, for names that are not known.
        chosen: columns that rows are filtered by; a label among them may be left unread.

    Raises:
        ValueError: a column is missing, two could be the same one, or one looks like a text but its name is not known.

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
            raise ValueError(f"columns: {canonical}: {column!r} is not there; {_listed(columns)}")
    free = [column for column in columns if column not in mapping.values()]
    layout: Layout = {}
    for canonical, accepted in _names(free, kind, mapping).items():
        candidates = [(mapping[canonical],)] if canonical in mapping else _candidates(free, accepted)
        if len(candidates) > 1:
            names = " and ".join(", ".join(columns) for columns in candidates)
            raise ValueError(
                f"{names} could both be {canonical!r}; say which, e.g. columns: {{{canonical}: {candidates[0][0]}}}"
            )
        if candidates:
            layout[canonical] = candidates[0]
        elif canonical not in OPTIONAL:
            raise ValueError(f"no column for {canonical!r}; {_listed(columns)}\n{accepted_layouts(kind)}")
    if kind == "pairs":
        if layout["query"][0].strip().lower() == "messages":
            layout.setdefault("instruction", (SYSTEM,))
        _check_rest([column for column in unused(columns, layout) if column not in chosen], layout, mapping)
    return layout


def required(kind: Kind) -> list[str]:
    """Return the canonical columns that every row of `kind` has."""
    return [canonical for canonical in ACCEPTED[kind] if canonical not in OPTIONAL]


def find_layout(columns: Collection[str], kind: Kind) -> Layout | None:
    """Return what the required columns of `kind` can be read from; None: they are not there."""
    for names in _layouts(kind):
        if _complete(columns, names, {}):
            return {canonical: _candidates(columns, names[canonical])[0] for canonical in required(kind)}
    return None


def _layouts(kind: Kind) -> list[Layout]:
    return [ACCEPTED[kind], *({**ACCEPTED[kind], **other} for other in OTHERS.get(kind, ()))]


def _complete(columns: Collection[str], names: Layout, mapping: Mapping[str, str]) -> bool:
    return all(
        canonical in OPTIONAL or canonical in mapping or bool(_candidates(columns, accepted))
        for canonical, accepted in names.items()
    )


def _names(columns: Collection[str], kind: Kind, mapping: Mapping[str, str]) -> Layout:
    """Return the names under which canonical columns are looked up: those of `ACCEPTED`, else other ones.

    Raises:
        ValueError: more than one of the others is there.
    """
    first, *others = _layouts(kind)
    if _complete(columns, first, mapping):
        return first
    complete = [names for names in others if _complete(columns, names, mapping)]
    if len(complete) > 1:
        needed = required(kind)
        sides = [
            ", ".join(str(_candidates(columns, names[canonical])[0][0]) for canonical in needed) for names in complete
        ]
        raise ValueError(
            f"{' and '.join(sides)} could both be {', '.join(needed)}; say which, e.g. columns: "
            f"{{{', '.join(f'{name}: {column}' for name, column in zip(needed, sides[0].split(', '), strict=True))}}}"
        )
    return complete[0] if complete else first


def accepted_layouts(kind: Kind) -> str:
    """Return a text that lists the known columns and says how to map others."""
    lines = [f"{kind} rows are read from these columns:"]
    for canonical, accepted in ACCEPTED[kind].items():
        optional = " (optional)" if canonical in OPTIONAL else ""
        lines.append(f"  {canonical}{optional}: {' | '.join(accepted)}")
    for other in OTHERS.get(kind, ()):
        lines.append("  or " + "; ".join(f"{canonical}: {' | '.join(names)}" for canonical, names in other.items()))
    first = next(iter(ACCEPTED[kind]))
    return "\n".join(
        [*lines, f"Map others with columns: {{canonical: column in the file}}, e.g. {{{first}: my_column}}"]
    )


def unused(columns: Collection[str], layout: Layout) -> list[str]:
    """Return the columns of the file that no canonical column is read from."""
    return sorted(set(columns) - {column for sources in layout.values() for column in sources})


def matched_columns(columns: Collection[str], layout: Layout) -> str:
    """Return a line: canonical columns, the columns of the file that they are read from, and ignored ones."""
    parts = [
        canonical if sources == (canonical,) else f"{canonical} from {', '.join(sources)}"
        for canonical, sources in layout.items()
    ]
    rest = unused(columns, layout)
    return "columns " + "; ".join(parts) + (f" (ignored: {', '.join(rest)})" if rest else "")


def _listed(columns: Collection[str]) -> str:
    return f"the columns found are {', '.join(sorted(columns)) or '(none)'}"


def _candidates(columns: Collection[str], accepted: tuple[str, ...]) -> list[tuple[str, ...]]:
    candidates: list[tuple[str, ...]] = []
    for name in accepted:
        if name == "pos_scores":  # FlagEmbedding's, one list for the positives and one for the negatives
            both = zip(same_name(columns, name), same_name(columns, "neg_scores"), strict=False)
            candidates += list(both)
        elif name == "negative_N":
            numbered = [column for column in columns if re.fullmatch(r"\s*negative_\d+\s*", column.lower())]
            candidates += [tuple(sorted(numbered, key=lambda column: int(column.split("_")[1])))] if numbered else []
        else:
            candidates += [(column,) for column in same_name(columns, name)]
    return candidates


def _check_rest(columns: list[str], layout: Layout, mapping: Mapping[str, str]) -> None:
    """Raise where a leftover column of pairs looks like a text to train on, or marks which rows are pairs."""
    labels = [column for column in columns if column.strip().lower() in LABELS]
    if labels and not mapping and layout["query"][0].strip().lower() in ("sentence1", "messages"):
        raise ValueError(
            f"column {labels[0]!r} marks which rows are pairs of query and positive; select these, e.g. where: "
            f"{{{labels[0]}: 1}}, or take all rows: columns: {{query: {layout['query'][0]}}}"
        )
    texts = {"anchor", "query", "queries", "pos", "positive", "positives", "neg", "negative", "negatives"}
    for column in columns:
        words = set(re.split(r"[^a-z]+", column.lower()))
        if words & texts and not words & {"id", "ids", "score", "scores", "label", "labels", "type", "index"}:
            raise ValueError(
                f"column {column!r} looks like a text of the pairs, but its name is not known; rename or remove it\n"
                f"{accepted_layouts('pairs')}"
            )
