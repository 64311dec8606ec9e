"""What the page shows of changed queries, pairs and classes: entries that name texts by number, each text once."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from embrew.comparison.changes import Confusion, PairChange, QueryChange
from embrew.report.example_texts import NO_TEXTS, RankedTexts

ENTRIES = 200  # of a task and model
SHOWN = 5  # documents of a query and model
NAME_LENGTH = 100  # characters of an id or a class
TEXT_LENGTH = 2000  # characters of a text
SIZE = 1_000_000  # bytes of JSON
# Entries of a task and model, and characters of a text: the first that fits into SIZE is used, or else the last.
LIMITS = (
    *((ENTRIES, length) for length in (TEXT_LENGTH, 1000, 500, 300)),
    *((entries, 300) for entries in (100, 50, 25, 12, 6, 3, 1)),
)

Kind = Literal["queries", "pairs", "classes"]


class Directed(Protocol):
    """A change that the second model has won or lost."""

    @property
    def is_won(self) -> bool:
        """Whether it has won it."""


D = TypeVar("D", bound=Directed)


@dataclass(frozen=True)
class Changed:
    """What changed on a task, and its texts.

    Attributes:
        label: Task with split and size.
        kind: What its examples are.
        scored: Whether pairs have scores, not labels.
        total: Number of examples.
        depth: Largest known rank of queries; None if all are known.
        by_model: Changes from the base, the largest first, for each other model.
        texts: Texts of queries and documents.
        pairs: Texts of pairs; None if they are not known.
    """

    label: str
    kind: Kind
    total: int
    by_model: Sequence[Sequence[Any]]
    scored: bool = False
    depth: int | None = None
    texts: RankedTexts = NO_TEXTS
    pairs: Sequence[tuple[str, str]] | None = None


@dataclass
class _Texts:
    """Names and texts by number, each once; longer texts are truncated.

    Attributes:
        length: Characters that are kept of a text.
        kept: Name, text (None if it is not known) and, where it was truncated, its number of characters.
        numbers: Number of each name and text.
        size: Bytes of JSON.
    """

    length: int
    kept: list[list[Any]] = field(default_factory=list)
    numbers: dict[tuple[str, str | None], int] = field(default_factory=dict)
    size: int = 0

    def number(self, name: str, text: str | None) -> int:
        """Return the number of a text."""
        if (name, text) not in self.numbers:
            self.numbers[name, text] = len(self.kept)
            if text is None or len(text) <= self.length:
                self.kept.append([shortened(name), text])
            else:
                self.kept.append([shortened(name), text[: self.length], len(text)])
            self.size += len(json.dumps(self.kept[-1], ensure_ascii=False).encode(errors="replace"))
        return self.numbers[name, text]


Write = Callable[[Any, Changed, _Texts], Mapping[str, Any]]


def page_data(tasks: Sequence[Changed], models: Sequence[str]) -> dict[str, Any]:
    """Return the data of the page, with as many entries and as long texts as fit into `SIZE`."""
    for entries, length in LIMITS[:-1]:
        data = _data(tasks, models, entries, length, size=SIZE)
        if data is not None:
            return data
    smallest = _data(tasks, models, *LIMITS[-1])
    assert smallest is not None
    return smallest


def chosen(changes: Sequence[D], limit: int) -> list[D]:
    """Return up to `limit` changes in their order; half of them are won and half lost where there are as many."""
    won = [i for i, change in enumerate(changes) if change.is_won]
    lost = [i for i, change in enumerate(changes) if not change.is_won]
    taken = lost[: max(limit // 2, limit - len(won))]
    return [changes[i] for i in sorted([*taken, *won[: limit - len(taken)]])]


def shortened(name: str) -> str:
    """Return an id or a class, truncated to `NAME_LENGTH` characters."""
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"


def _data(
    tasks: Sequence[Changed], models: Sequence[str], entries: int, length: int, *, size: float = math.inf
) -> dict[str, Any] | None:
    """Return the data with `entries` per list and `length` characters per text at most; None if larger than `size`."""
    texts, written = _Texts(length), 0
    write: dict[Kind, Write] = {"queries": _query, "pairs": _pair, "classes": _confusion}
    shown = []
    for task in tasks:
        lists = []
        for changes in task.by_model:
            rows = [write[task.kind](one, task, texts) for one in chosen(changes, entries)]
            written += len(json.dumps(rows))
            if written + texts.size > size:
                return None
            won = sum(one.is_won for one in changes)
            lists.append({"changed": len(changes), "won": won, "entries": rows})
        about = {"label": task.label, "kind": task.kind, "scored": task.scored, "total": task.total}
        shown.append({**about, "depth": task.depth, "lists": lists})
    return {"models": list(models), "texts": texts.kept, "tasks": shown, "limit": entries, "length": length}


def _query(change: QueryChange, task: Changed, texts: _Texts) -> Mapping[str, Any]:
    query, relevant = change.query, task.texts.relevant(change.query)
    tops = [top[:SHOWN] for top in (change.top_before, change.top_after)]
    ranks = (change.before, change.after)
    found = {top[rank - 1] for rank, top in zip(ranks, tops, strict=True) if rank and rank <= len(top)}
    right = {name for top in tops for name in top} & {*found, *relevant}

    def number(name: str) -> int:
        return texts.number(name, task.texts.document(query, name))

    return {
        "query": texts.number(query, task.texts.query(query)),
        "ranks": [change.before, change.after],
        "won": change.is_won,
        "tops": [[number(name) for name in top] for top in tops],
        "right": sorted(number(name) for name in right),
        # Where neither model has a relevant document among those shown, one is shown beside them.
        "missed": [number(name) for name in relevant[:1]] if not right else [],
    }


def _pair(change: PairChange, task: Changed, texts: _Texts) -> Mapping[str, Any]:
    sides: Sequence[str | None] = (None, None) if task.pairs is None else task.pairs[change.row]
    name = f"row {change.row + 1}"
    return {
        "texts": [texts.number(name if side is None else "", side) for side in sides],
        "gold": change.gold,
        "cosines": [round(change.before, 6), round(change.after, 6)],
        "ranks": change.ranks,
        "won": change.is_won,
    }


def _confusion(change: Confusion, task: Changed, texts: _Texts) -> Mapping[str, Any]:
    return {
        "classes": [shortened(change.gold), shortened(change.predicted)],
        "counts": [change.before, change.after],
        "total": change.total,
        "won": change.is_won,
    }
