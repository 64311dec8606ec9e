"""Values of `benchmarks/results/*.json`, and how a cell of a table shows them. Used by `result_tables.py`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
NOT_MEASURED = "not measured"
NO_TEXT = "–"  # does not apply


@cache
def result(name: str) -> Any:
    """Return the content of `benchmarks/results/NAME.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def has_result(name: str) -> bool:
    """Return whether `benchmarks/results/NAME.json` exists."""
    return (RESULTS / f"{name}.json").exists()


def page_of(name: str) -> str:
    """Return the path that pages cite for a result: its Markdown file, if it has one."""
    return f"`benchmarks/results/{name}.{'md' if (RESULTS / f'{name}.md').exists() else 'json'}`"


def path_of(given: Any) -> list[Any]:
    """Return a path as a list of keys; none for nothing."""
    return [] if given is None else given if isinstance(given, list) else [given]


def find(content: Any, path: list[Any]) -> Any:
    """Return what a path leads to.

    A name enters an object, or each object of a list; a number is an index; `{name: value}` selects the only object of
    a list that has this value; a list of names means the mean over them, for each seed.

    Raises:
        KeyError: a part of the path leads to nothing, or to several objects.
    """
    for part in path:
        if isinstance(part, Mapping):
            chosen = [item for item in content if part.items() <= item.items()]
            if len(chosen) != 1:
                raise KeyError(f"{part} (found {len(chosen)} times)")
            content = chosen[0]
        elif isinstance(part, list):
            content = [statistics.fmean(seed) for seed in zip(*(content[name] for name in part), strict=True)]
        elif isinstance(content, list) and isinstance(part, str):
            content = [item[part] for item in content]
        elif isinstance(content, list) and not 0 <= part < len(content):
            raise KeyError(part)
        else:
            content = content[part]
    return content


@dataclass(frozen=True)
class Row:
    """Where the cells of a row are read, and `cells` with their text; its other cells are `otherwise`, if it is set."""

    path: Any = None
    file: str | None = None
    cells: Mapping[str, str] = field(default_factory=dict)
    otherwise: str | None = None


def filled(text: str, row: Row) -> str:
    """Return a text with the row's path in place of `{row}`."""
    return text.replace("{row}", str(row.path))


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read and shown; the fields are the keys in `docs/tables.yaml`."""

    path: Any = None
    at: Any = None
    file: str | None = None
    scale: float = 1
    format: str = ".1f"
    range: tuple[Any, Any] | None = None
    minus: Any = None
    show: str = "mean"
    best: str | None = None
    align: str = "right"

    def path_in(self, row: Row, given: Any) -> list[Any]:
        """Return a path of the column within a row: `{row}` stands for the row's path, which else comes first."""
        path = path_of(given)
        if "{row}" in f"{path} {self.file}":
            return [filled(part, row) if isinstance(part, str) else part for part in path]
        return [*path_of(row.path), *path]

    def value(self, content: Any, row: Row) -> Any:
        """Return the value of a row: a number, a list with one per seed, or a text."""
        value = find(content, self.path_in(row, self.path))
        if self.minus is None:
            return value
        other = find(content, self.path_in(row, self.minus))
        return [one - less for one, less in zip(value, other, strict=True)]

    def ends(self, content: Any, row: Row) -> list[Any]:
        """Return the two values of the range beside a value, if there is one."""
        place = find(content, self.path_in(row, self.path)[:-1]) if self.range else {}
        return [place[end] for end in self.range or () if place[end] is not None]

    def text(self, value: Any) -> str:
        """Return a value as a cell: a number, the mean ± standard deviation of several, words, or words with counts."""
        if value is None:
            return NOT_MEASURED
        if isinstance(value, str):
            return value
        if isinstance(value, Mapping):
            return "; ".join(f"{name} ({count})" for name, count in value.items()) or "none"
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return "; ".join(value) or "none"
        given = value if isinstance(value, list) else [value]
        if self.show == "count":
            return str(len(given))
        numbers = [self.scale * number for number in given if number is not None]
        if not numbers:
            return NO_TEXT
        if self.show == "each":
            return ", ".join(format(number, self.format) for number in numbers)
        mean = format(statistics.fmean(numbers), self.format)
        if len(numbers) == 1:
            return mean
        return f"{mean} ± {format(statistics.stdev(numbers), self.format.removeprefix('+'))}"
